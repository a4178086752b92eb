"""Laws of single ops, written by hand: folding of constants, units, idempotence, involutions, conversions.

When: in every call of `simplify`. Assumes nothing. Guarantees: no elementwise op with only constant sources is left.
Mathematics: the rows of ir/ops.py. Floats: only what IEEE 754 keeps exact, so x+0, x*0, x-x and x/x stay (nan, inf,
-0). Tests: tests/laws/.
"""

from __future__ import annotations

from ..dtype import dtypes
from ..fold import fold_constant
from ..ops import Ops
from ..pattern import Rule, RuleSet, const_var, node, var
from ..uop import UOp, const

__all__ = ["GENERIC"]

x, y = var("x"), var("y")
c = const_var("c")


def _by_bounds(u: UOp) -> UOp | None:
    """An int or bool expression that can have one value only is that constant."""
    low, high = u.bounds
    return const(u.dtype, low) if low == high else None


_ELEMENTWISE = [op for op in Ops.rows() if op.is_elementwise]


def _cast_cast(x: UOp, u: UOp) -> UOp | None:
    """cast(cast(x)) drops the inner one when that one could hold every value of x."""
    inner = u.src[0].dtype
    holds = x.dtype.is_bool or (
        (x.dtype.is_float == inner.is_float and x.dtype.kind == inner.kind and inner.bits >= x.dtype.bits
         and not (inner.bits == x.dtype.bits and inner is not x.dtype))
        or (x.dtype.is_int and inner.is_int and inner.min <= x.dtype.min and x.dtype.max <= inner.max)
    )  # fmt: skip
    return x.cast(u.dtype) if holds else None


GENERIC = RuleSet(
    "generic",
    [
        Rule("fold_constant", var("u"), fold_constant, ops=_ELEMENTWISE),
        Rule("known_by_bounds", var("u"), _by_bounds, kind="whole", ops=_ELEMENTWISE),
        # units
        Rule("add_zero", x + 0, x, kind="exact"),
        Rule("sub_zero", x - 0, x, when=lambda x: not x.dtype.is_float),
        Rule("mul_one", x * 1, x),
        Rule("mul_zero", x * 0, 0, kind="exact"),
        Rule("div_one", x / 1, x),
        Rule("or_zero", x | 0, x),
        Rule("xor_zero", x ^ 0, x),
        Rule("xor_self", x ^ x, 0),
        Rule("sub_self", x - x, 0, kind="exact"),
        # idempotence
        *(Rule(f"{op.name.lower()}_self", node(op, x, x), x) for op in Ops.rows() if op.idempotent),
        # involutions
        Rule("neg_neg", node(Ops.NEG, -x), x),
        Rule("abs_abs", node(Ops.ABS, node(Ops.ABS, x, name="inner")), lambda inner: inner),
        Rule("shift_zero", node(Ops.SHL, x, 0), x),
        Rule("shift_right_zero", node(Ops.SHR, x, 0), x),
        Rule("pow_one", node(Ops.POW, x, 1), x),
        Rule("detach_detach", node(Ops.DETACH, node(Ops.DETACH, x, name="inner")), lambda inner: inner),
        # bits that are extracted at one position and inserted at another are shifted once
        Rule("shl_of_masked_shr", node(Ops.SHL, node(Ops.SHR, x, const_var("a")) & const_var("m"), const_var("b")),
             lambda x, a, m, b: (x << max(b.arg - a.arg, 0) >> max(a.arg - b.arg, 0)) & (m.arg << b.arg & x.dtype.max),
             when=lambda x, a, b: x.dtype.kind == "uint" and max(a.arg, b.arg) < x.dtype.bits),
        # conversions
        Rule("cast_same", node(Ops.CAST, x, name="u"), lambda x: x, when=lambda x, u: x.dtype is u.dtype),
        Rule("bitcast_same", node(Ops.BITCAST, x, name="u"), lambda x: x, when=lambda x, u: x.dtype is u.dtype),
        Rule("cast_cast", node(Ops.CAST, node(Ops.CAST, x), name="u"), _cast_cast),
        Rule("bitcast_bitcast", node(Ops.BITCAST, node(Ops.BITCAST, x), name="u"),
             lambda x, u: u.replace(src=(x,))),
        Rule("cast_bool_ne_zero", node(Ops.CAST, x, name="u"), lambda x: x.ne(0),
             when=lambda x, u: u.dtype.is_bool and x.dtype.scalar is not dtypes.bool),
        # vectors
        Rule("broadcast_const", node(Ops.BROADCAST, c, name="u"), lambda c, u: const(u.dtype, c.arg)),
    ],
    laws=True,
)  # fmt: skip
