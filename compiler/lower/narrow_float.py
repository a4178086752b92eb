"""float16 and bfloat16: stored in memory, computed in float32.

When: during decomposition. Guarantees: no arithmetic on a 16-bit float is left unless the target lists it. bfloat16 is
converted by shifts and one rounding step (to nearest, ties to even, nan stays nan), so every target gives the same
bits. Tests: tests/compiler/lower/test_narrow_float.py.
"""

from __future__ import annotations

from collections.abc import Callable

from kernmill.ir import DType, OpGroup, Ops, Rule, RuleSet, Target, UOp, dtypes, node

__all__ = ["narrow_float_rules"]

_NARROW = (dtypes.float16, dtypes.bfloat16)


def _widen(u: UOp) -> UOp:
    """The op in float32, its result rounded back."""
    src = tuple(s.cast(dtypes.float32) if s.dtype.scalar in _NARROW else s for s in u.src)
    if u.op.group is OpGroup.COMPARE:
        return u.replace(src=src)
    return UOp(u.op, dtypes.float32.vec(u.dtype.lanes), src, u.arg).cast(u.dtype.scalar)


def _is_narrow_math(u: UOp, target: Target) -> bool:
    return any(s.dtype.scalar in _NARROW and s.dtype.scalar not in target.compute_dtypes for s in u.src)


def _from_bfloat16(u: UOp) -> UOp:
    lanes = u.src[0].dtype.lanes
    bits = u.src[0].bitcast(dtypes.uint16).cast(dtypes.uint32) << 16
    wide = bits.bitcast(dtypes.float32)
    return wide if u.dtype is dtypes.float32.vec(lanes) else wide.cast(u.dtype.scalar)


def _to_bfloat16(u: UOp) -> UOp:
    wide = u.src[0] if u.src[0].dtype.scalar is dtypes.float32 else u.src[0].cast(dtypes.float32)
    bits = wide.bitcast(dtypes.uint32)
    rounded = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
    quiet = (bits >> 16) | 0x40
    return wide.ne(wide).where(quiet, rounded).cast(dtypes.uint16).bitcast(dtypes.bfloat16)


def _float64_to_float16(u: UOp) -> UOp:
    """Convert by a float32 rounded to odd: its last bit marks an inexact value, so the second rounding is correct."""
    x = u.src[0]
    near = x.cast(dtypes.float32)
    back = near.cast(dtypes.float64)
    bits = near.bitcast(dtypes.uint32)
    cut = (x.alu(Ops.ABS) < back.alu(Ops.ABS)).where(bits - 1, bits) | 1
    return back.ne(x).where(cut, bits).bitcast(dtypes.float32).cast(dtypes.float16)


def _from_float16_bits(u: UOp) -> UOp:
    """float16 to float32 by shifts and one exact product, which also gives denormals their exponent."""
    bits = u.src[0].bitcast(dtypes.uint16).cast(dtypes.uint32)
    size = (bits & 0x7FFF) << 13
    scaled = (size.bitcast(dtypes.float32) * 2.0**112).bitcast(dtypes.uint32)
    special = size | 0x7F800000  # inf and nan
    wide = ((bits & 0x7FFF) < 0x7C00).where(scaled, special) | ((bits & 0x8000) << 16)
    return wide.bitcast(dtypes.float32).cast(u.dtype.scalar)


def _to_float16_bits(u: UOp) -> UOp:
    """Convert float32 to float16, to nearest even; adding 0.5 moves a denormal's bits to the low positions."""
    bits = u.src[0].bitcast(dtypes.uint32)
    size = bits & 0x7FFFFFFF
    normal = (size + (((size >> 13) & 1) + 0xFFF) - (112 << 23)) >> 13
    denormal = (size.bitcast(dtypes.float32) + 0.5).bitcast(dtypes.uint32) - 0x3F000000
    small = (size < 0x38800000).where(denormal, normal)
    finite = (size < 0x47800000).where(small, small.like(0x7C00))
    half = (size <= 0x7F800000).where(finite, finite.like(0x7E00)) | ((bits >> 16) & 0x8000)
    return half.cast(dtypes.uint16).bitcast(dtypes.float16)


def _through_float32(u: UOp) -> UOp | None:
    """Convert between float16 and a dtype that is not a float."""
    of, to = u.src[0].dtype.scalar, u.dtype.scalar
    if dtypes.float16 not in (of, to) or of.is_float is to.is_float:
        return None
    return u.src[0].cast(dtypes.float32).cast(to)


def _cast(name: str, becomes: Callable[[UOp], UOp | None], of: DType | None = None, to: DType | None = None) -> Rule:
    """A rule for CASTs of one dtype, to one dtype, or both."""

    def fits(u: UOp) -> bool:
        return of in (None, u.src[0].dtype.scalar) and to in (None, u.dtype.scalar)

    return Rule(f"cast_{name}", node(Ops.CAST, name="u"), becomes, when=fits)


def narrow_float_rules(target: Target) -> RuleSet:
    """Rules for a target."""
    casts = [
        _cast("from_bfloat16", _from_bfloat16, of=dtypes.bfloat16),
        _cast("to_bfloat16", _to_bfloat16, to=dtypes.bfloat16),
        _cast("float64_to_float16", _float64_to_float16, dtypes.float64, dtypes.float16),
        _cast("int_to_float16", _through_float32),
    ]
    if dtypes.float16 not in target.storage_dtypes:
        casts += [
            _cast("from_float16_bits", _from_float16_bits, of=dtypes.float16),
            _cast("to_float16_bits", _to_float16_bits, to=dtypes.float16),
        ]
    widen = [
        Rule(f"widen_{op.name.lower()}", node(op, name="u"), _widen, when=lambda u: _is_narrow_math(u, target))
        for op in Ops.rows()
        if (op.is_elementwise and op.group is not OpGroup.CONVERT and op is not Ops.WHERE) or op is Ops.FOLD
    ]
    return RuleSet("narrow_float", [*casts, *widen])
