"""Ops that the target does not support become ops that it supports.

When: after accumulators exist. Why there: then vectors are final, and a polynomial is written once for all lanes.
Guarantees: every elementwise op left is in target.ops, and so is every FOLD. Tests:
tests/compiler/lower/test_decompose.py.
"""

from __future__ import annotations

from functools import cache

from kernmill.ir import Op, Ops, Rule, RuleSet, Target, UOp, dtypes, node, rewrite, var

from .division import DIVISION
from .narrow_float import narrow_float_rules
from .split_float import fma_in_parts, scale_in_steps
from .transcendental import SINES_IN_WORDS, TRANSCENDENTAL

__all__ = ["decompose"]

x, y, z = var("x"), var("y"), var("z")


def _max_or_min(u: UOp) -> UOp | None:
    """Expand max or min: a if a is nan or better than b, else b. A nan of b is never worse than a, so it remains.

    For indices see lower_index.py.
    """
    a, b = u.src
    if u.dtype.is_index:
        return None
    if a.dtype.is_bool:
        return a | b if u.op is Ops.MAX else a & b
    better = (b < a if u.op is Ops.MAX else a < b).where(a, b)
    return a.eq(a).where(better, a) if a.dtype.is_float else better


def _fma(u: UOp, x: UOp, y: UOp, z: UOp) -> UOp:
    return fma_in_parts(x, y, z) if u.arg else x * y + z


def _safe_shift(u: UOp) -> UOp | None:
    """A shift by an amount that may be outside the word."""
    value, by = u.src
    bits = value.dtype.bits
    if by.bounds[0] >= 0 and by.bounds[1] < bits:
        return None
    inside = (by >= 0) & (by < bits)
    shifted = value.alu(u.op, by & (bits - 1))  # inside the word for every by, as its bounds show
    return inside.where(shifted, value.alu(Ops.SHR, bits - 1) if u.op is Ops.SHR and value.dtype.min != 0 else 0)


def _float_to_int(u: UOp) -> UOp | None:
    """Convert through int32 or int64: a float in its range wraps on every target, and others are undefined."""
    (x,), to = u.src, u.dtype.scalar
    wide = dtypes.int64 if to.bits == 64 else dtypes.int32
    if not (x.dtype.is_float and to.is_int) or to is wide:
        return None
    if to.bits >= 32:  # the upper half of an unsigned one
        x = (x < 2.0 ** (to.bits - 1)).where(x, x - 2.0**to.bits)
    return x.cast(wide).cast(to)


def _fold(u: UOp, target: Target) -> UOp | None:
    """Reduce lanes by halves until one is left. Integer sums use the target's op, or adjacent lanes.

    LLVM, which OpenCL drivers use too, cannot match a byte dot product when lanes are folded by halves.
    """
    is_whole = u.arg is Ops.ADD and u.dtype.is_int
    if is_whole and Ops.FOLD in target.ops:
        return None
    value = u.src[0]
    while (lanes := value.dtype.lanes) > 2:
        middle = lanes // 2
        picks = (range(0, lanes, 2), range(1, lanes, 2)) if is_whole else (range(middle), range(middle, lanes))
        low, high = (UOp(Ops.SHUFFLE, value.dtype.vec(middle), (value, value), tuple(pick)) for pick in picks)
        value = low.alu(u.arg, high)
    both = value.alu(u.arg, UOp(Ops.SHUFFLE, value.dtype, (value, value), (1, 0)))
    return UOp(Ops.LANE, u.dtype, (both,), 0)


# ops that most targets lack; a target with an instruction for one of them lists it in target.ops
_BASICS: list[tuple[Op, Rule]] = [
    (Ops.MAX, Rule("max_to_where", node(Ops.MAX, x, y).named("u"), _max_or_min)),
    (Ops.MIN, Rule("min_to_where", node(Ops.MIN, x, y).named("u"), _max_or_min)),
    (Ops.FMA, Rule("fma_in_parts", node(Ops.FMA, x, y, z).named("u"), _fma)),
    (Ops.NEG, Rule("neg_to_sub", node(Ops.NEG, x), lambda x: x.like(-0.0 if x.dtype.is_float else 0) - x)),
    (Ops.ABS, Rule("abs_to_where", node(Ops.ABS, x), lambda x: (x < 0).where(-x, x + 0 if x.dtype.is_float else x))),
]

_ALWAYS = [
    Rule("fma_of_ints", node(Ops.FMA, x, y, z), lambda x, y, z: x * y + z, when=lambda x, y, z: not x.dtype.is_float),
    Rule("abs_of_ints", node(Ops.ABS, x), lambda x: (x < 0).where(-x, x), when=lambda x: not x.dtype.is_float),
    Rule("shift_in_range", node(Ops.SHL, x, y).named("u"), _safe_shift),
    Rule("shift_right_in_range", node(Ops.SHR, x, y).named("u"), _safe_shift),
    Rule("float_to_int", node(Ops.CAST, x).named("u"), _float_to_int),
]


@cache
def _rules(target: Target) -> RuleSet:
    rules = [*(rule for op, rule in _BASICS if op not in target.ops), *_ALWAYS]
    sines = () if dtypes.float64 in target.storage_dtypes else SINES_IN_WORDS
    rules.append(Rule("fold_to_halves", node(Ops.FOLD, x).named("u"), lambda u: _fold(u, target)))
    whole = 8 * target.vector_bytes if Ops.SCALE in target.ops else 0  # bits of a register
    is_not_full = lambda x, y: x.dtype.bits * x.dtype.lanes != whole  # noqa: E731
    rules.append(Rule("scale_in_steps", node(Ops.SCALE, x, y), lambda x, y: scale_in_steps(x, y), when=is_not_full))
    rules += [r for r in (*sines, *TRANSCENDENTAL) if r.pattern.op not in target.ops]
    rules += list(DIVISION)
    return RuleSet("decompose", [*narrow_float_rules(target), *rules])


def decompose(ast: UOp, target: Target) -> UOp:
    """The kernel in ops of the target."""
    return rewrite(ast, _rules(target))
