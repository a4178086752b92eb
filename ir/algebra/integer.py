"""Laws of integers that do not wrap (dtype index): sums in normal form.

When: in every call of `simplify`. Guarantees: an index sum is its normal form of linear.py, so equal sums are one node.
Why index only: a sum of int32 wraps, and moving constants across a wrap is sound only modulo 2^32. Tests: tests/laws/.
"""

from __future__ import annotations

from ..ops import Ops
from ..pattern import Rule, RuleSet, const_var, node, var
from ..uop import UOp
from .linear import from_linear, linear, recombined

__all__ = ["INTEGER"]

x, y = var("x"), var("y")
c = const_var("c")


def _normal_form(u: UOp) -> UOp | None:
    """Equal atoms together, constants together, in the one fixed order."""
    normal = from_linear(*linear(u), u.dtype)
    return None if normal is u else normal


def _recombine(u: UOp) -> UOp | None:
    """Combine quotient and remainder of one division, at any position of a sum."""
    terms, offset = linear(u)
    found = recombined(terms)
    return None if found is None else from_linear(found[0], offset + found[1], u.dtype)


def _min_max(u: UOp) -> UOp | None:
    """min or max of two expressions whose intervals do not cross is one of them."""
    a, b = u.src
    if a.bounds[1] <= b.bounds[0]:
        return a if u.op is Ops.MIN else b
    if b.bounds[1] <= a.bounds[0]:
        return b if u.op is Ops.MIN else a
    return None


INTEGER = RuleSet(
    "integer",
    [
        Rule("add_div_mod", node(Ops.ADD, x, y, name="u"), _recombine, kind="index"),
        Rule("add_collect", node(Ops.ADD, x, y, name="u"), _normal_form, kind="index"),
        Rule("sub_collect", node(Ops.SUB, x, y, name="u"), _normal_form, kind="index"),
        Rule("neg_collect", node(Ops.NEG, x, name="u"), _normal_form, kind="index"),
        Rule("mul_collect", node(Ops.MUL, x, c, name="u"), _normal_form, kind="index"),
        Rule("max_by_bounds", node(Ops.MAX, x, y, name="u"), _min_max, kind="int"),
        Rule("min_by_bounds", node(Ops.MIN, x, y, name="u"), _min_max, kind="int"),
        Rule("cast_index_round_trip", node(Ops.CAST, node(Ops.CAST, x, name="inner"), name="u"), lambda x: x,
             when=lambda x, inner, u: x.dtype is u.dtype and x.dtype.is_index and inner.dtype.is_int
             and inner.dtype.min <= x.bounds[0] and x.bounds[1] <= inner.dtype.max),
    ],
    laws=True,
)  # fmt: skip
