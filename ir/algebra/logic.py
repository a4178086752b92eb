"""Laws of bools, comparisons and WHERE.

When: in every call of `simplify`. Guarantees: a comparison of an int sum with a constant is divided by its common
factor. Tests: tests/laws/.
"""

from __future__ import annotations

from math import copysign, gcd

from ..ops import Ops
from ..pattern import Rule, RuleSet, const_var, node, var
from ..uop import UOp
from .linear import from_linear, linear, span

__all__ = ["LOGIC"]

x, y, z = var("x"), var("y"), var("z")
b, c = var("b", "bool"), const_var("c")


def _both_fit(u: UOp, x: UOp, y: UOp) -> bool:
    """True if both are index expressions that fit the dtype they are cast to."""
    least, most = u.dtype.min, u.dtype.max
    return u.dtype.is_int and all(_is_index(s) and least <= s.bounds[0] and s.bounds[1] <= most for s in (x, y))


def _fits(u: UOp, x: UOp, c: UOp) -> bool:
    return _both_fit(u, x, x) and u.dtype.min < c.arg < u.dtype.max


def _smaller(x: UOp, limit: int) -> tuple[UOp, int] | None:
    """Return y and n such that x < limit equals y < n. It removes common factors and smaller terms, and moves the
    constant to the right. None if nothing changes."""
    terms, offset = linear(x)
    for g in sorted({k for k in terms.values() if k > 1 and limit % k == 0}, reverse=True):
        least, most = span({atom: k for atom, k in terms.items() if k % g}, offset)
        if least >= 0 and 0 < most < g:
            return from_linear({atom: k // g for atom, k in terms.items() if k % g == 0}, 0, x.dtype), limit // g
    factor = gcd(*terms.values())
    if factor == 0 or (factor == 1 and offset == 0):
        return None
    return from_linear({atom: k // factor for atom, k in terms.items()}, 0, x.dtype), -((offset - limit) // factor)


def _lt_divide(x: UOp, c: UOp) -> UOp | None:
    """g*x + k < c  ->  x < ceil((c - k) / g)."""
    found = _smaller(x, int(c.arg))
    return found and found[0] < found[1]


def _lt_divide_left(x: UOp, c: UOp) -> UOp | None:
    """c < g*x + k  ->  floor((c - k) / g) < x: as lt_divide, for a lower limit."""
    found = _smaller(x, int(c.arg) + 1)
    return found and found[0] > found[1] - 1


def _is_no_load(c: UOp) -> bool:
    """True for 0 but not -0.0: the value that a load gives whose gate is false."""
    return bool(c.arg == 0 and copysign(1.0, c.arg) > 0)


def _is_index(x: UOp) -> bool:
    return x.dtype.is_index


LOGIC = RuleSet(
    "logic",
    [
        Rule("and_true", b & 1, b),
        Rule("and_false", b & 0, 0, kind="bool"),
        Rule("or_true", b | 1, 1, kind="bool"),
        Rule("not_not", (b ^ 1) ^ 1, b),
        Rule("add_bool_is_or", x + y, lambda x, y: x | y, kind="bool"),
        Rule("mul_bool_is_and", x * y, lambda x, y: x & y, kind="bool"),
        Rule("max_bool_is_or", node(Ops.MAX, x, y), lambda x, y: x | y, kind="bool"),
        Rule("min_bool_is_and", node(Ops.MIN, x, y), lambda x, y: x & y, kind="bool"),
        Rule("eq_self", x.eq(x), 1, when=lambda x: not x.dtype.is_float),
        Rule("ne_self", x.ne(x), 0, when=lambda x: not x.dtype.is_float),
        Rule("ne_false", b.ne(0), b),
        Rule("eq_true", b.eq(1), b),
        Rule("lt_of_indices", node(Ops.CAST, x, name="u") < node(Ops.CAST, y), lambda x, y: x < y, when=_both_fit),
        Rule("le_of_indices", node(Ops.CAST, x, name="u") <= node(Ops.CAST, y), lambda x, y: x <= y, when=_both_fit),
        Rule("lt_of_index", node(Ops.CAST, x, name="u") < c, lambda x, c: x < int(c.arg), when=_fits),
        Rule("lt_of_index_left", c < node(Ops.CAST, x, name="u"), lambda x, c: x > int(c.arg), when=_fits),
        Rule("lt_divide", x < c, _lt_divide, when=_is_index),
        Rule("lt_divide_left", c < x, _lt_divide_left, when=_is_index),
        Rule("le_to_lt", x <= c, lambda x, c: x < (c.arg + 1), when=_is_index),
        Rule("le_to_lt_left", c <= x, lambda x, c: x > (c.arg - 1), when=_is_index),
        Rule("where_true", node(Ops.WHERE, const_var("c"), x, y), lambda x, c, y: x if c.arg else y),
        Rule("where_same_branches", b.where(x, x), x),
        Rule("where_to_bool", b.where(1, 0), b, kind="bool"),
        Rule("where_same_condition_yes", b.where(b.where(x, y), z), lambda b, x, z: b.where(x, z)),
        Rule("where_same_condition_no", b.where(x, b.where(y, z)), lambda b, x, z: b.where(x, z)),
        Rule("where_nested_and", b.where(node(Ops.WHERE, var("d"), x, y), y), lambda b, d, x, y: (b & d).where(x, y)),
        Rule("where_gated_load", b.where(node(Ops.LOAD, node(Ops.INDEX, x, y, b), name="u"), c), lambda u: u,
             when=_is_no_load),
        Rule("load_nowhere", node(Ops.LOAD, node(Ops.INDEX, x, y, 0)), 0),
        Rule("load_anywhere", node(Ops.LOAD, node(Ops.INDEX, x, y, 1, name="at"), name="u"),
             lambda u, at: u.replace(src=(at.replace(src=at.src[:2]),))),
        Rule("and_absorb", (b & y).named("u") & b, lambda u: u),
    ],
    laws=True,
)  # fmt: skip
