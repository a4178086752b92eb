"""Laws of floor division and remainder of index expressions, which reshapes produce.

When: in every call of `simplify`. Why here: a reshape followed by its inverse must vanish, or fusion pays for it.
Assumes: floor semantics (the remainder has the sign of the divisor), a constant divisor > 0 unless said.
Guarantees: terms that the divisor divides are taken out; remainders of values in range are removed.
Mathematics: x = c*q + r gives x//c = q + r//c and x%c = r%c. Cases: 1 in range, 2 split off multiples, 3 common factor,
4 nested, 5 a symbolic divisor. Tests: tests/laws/test_rules.py, tests/laws/test_index.py.
"""

from __future__ import annotations

from math import gcd

from ..ops import Ops
from ..pattern import Rule, RuleSet, const_var, var
from ..uop import UOp
from .linear import from_linear, linear, span

__all__ = ["DIVMOD"]

x, y = var("x"), var("y")
c, d = const_var("c"), const_var("d")


def _split(x: UOp, divisor: UOp) -> tuple[UOp, UOp] | None:
    """Case 2: split x into c*q + r with as much as possible in q; r keeps constants in 0..c-1. None if q would be 0."""
    c = int(divisor.arg)
    if c <= 1:
        return None
    terms, offset = linear(x)
    whole = {atom: k // c for atom, k in terms.items() if k % c == 0}
    if not whole and 0 <= offset < c:
        return _split_coefficients(terms, offset, x, c)
    rest = {atom: k for atom, k in terms.items() if k % c}
    return from_linear(whole, offset // c, x.dtype), from_linear(rest, offset % c, x.dtype)


def _split_coefficients(terms: dict[UOp, int], offset: int, x: UOp, c: int) -> tuple[UOp, UOp] | None:
    """Move multiples of c from coefficients above c (or below 0) to q, if that puts r into 0..c-1."""
    moved = {atom: k // c for atom, k in terms.items() if not 0 < k < c}
    if not moved:
        return None
    rest = {atom: k % c for atom, k in terms.items() if k % c}
    low, high = span(rest, offset)
    return (from_linear(moved, 0, x.dtype), from_linear(rest, offset, x.dtype)) if low >= 0 and high < c else None


def _div_in_range(x: UOp, c: UOp) -> UOp | int | None:
    """Case 1: all of x is between two multiples of c."""
    if c.arg <= 0:
        return None
    low, high = x.bounds[0] // c.arg, x.bounds[1] // c.arg
    return int(low) if low == high else None


def _mod_in_range(x: UOp, c: UOp) -> UOp | None:
    if c.arg <= 0:
        return None
    low = int(x.bounds[0] // c.arg)
    return x - low * c.arg if low == x.bounds[1] // c.arg else None


def _common(x: UOp, divisor: UOp) -> tuple[UOp, UOp, int] | None:
    """Case 3: x = g*x' + s with 0 <= s < g and g dividing c: (x', s, g) with the greatest such g.

    (g*x' + s) // (g*c') = x' // c', and (g*x' + s) % (g*c') = g*(x' % c') + s.
    """
    (terms, offset), c = linear(x), int(divisor.arg)
    for g in sorted({gcd(c, k) for k in terms.values()}, reverse=True) if c > 1 else ():
        if g == 1:
            break
        rest = {atom: k for atom, k in terms.items() if k % g}
        low, high = span(rest, offset % g)
        if low >= 0 and high < g:
            whole = {atom: k // g for atom, k in terms.items() if k % g == 0}
            return from_linear(whole, offset // g, x.dtype), from_linear(rest, offset % g, x.dtype), g
    return None


def _symbolic(x: UOp, y: UOp) -> tuple[UOp, UOp] | None:
    """Case 5: separate the terms that are multiples of the divisor y; the remainder must be provably in 0..y-1."""
    terms, offset = linear(x)
    whole: dict[UOp, int] = {}
    rest: dict[UOp, int] = {}
    for atom, k in terms.items():
        if atom.op is Ops.MUL and y in atom.src:
            other = atom.src[0] if atom.src[1] is y else atom.src[1]
            whole[other] = whole.get(other, 0) + k
        elif atom is y:
            whole[atom.like(1)] = whole.get(atom.like(1), 0) + k
        else:
            rest[atom] = k
    r = from_linear(rest, offset, x.dtype)
    below = r.bounds[1] < y.bounds[0] or (r.op is Ops.RANGE and r.src[0] is y)
    if r.bounds[0] < 0 or not below or y.bounds[0] < 1:
        return None
    total = r.like(0)
    for atom, k in whole.items():
        total = total + atom * k
    return total, r


DIVMOD = RuleSet(
    "divmod",
    [
        Rule("floordiv_one", x // 1, x, kind="exact"),
        Rule("mod_one", x % 1, 0, kind="exact"),
        Rule("floordiv_in_range", x // c, _div_in_range, kind="index"),
        Rule("mod_in_range", x % c, _mod_in_range, kind="index"),
        Rule("floordiv_split", x // c, lambda x, c: (p := _split(x, c)) and p[0] + p[1] // c.arg, kind="index"),
        Rule("mod_split", x % c, lambda x, c: (p := _split(x, c)) and p[1] % c.arg, kind="index"),
        Rule("floordiv_common", x // c, lambda x, c: (p := _common(x, c)) and p[0] // (c.arg // p[2]), kind="index"),
        Rule("mod_common", x % c, lambda x, c: (p := _common(x, c)) and p[0] % (c.arg // p[2]) * p[2] + p[1],
             kind="index"),
        Rule("floordiv_floordiv", (x // c) // d, lambda x, c, d: x // (c.arg * d.arg), kind="index",
             when=lambda c, d: c.arg > 0 and d.arg > 0),
        Rule("mod_mod", (x % c) % d, lambda x, d: x % d, kind="index",
             when=lambda c, d: d.arg > 0 and c.arg > 0 and c.arg % d.arg == 0),
        Rule("floordiv_of_mod", (x % c) // d, lambda x, c, d: (x // d) % (c.arg // d.arg), kind="index",
             when=lambda c, d: d.arg > 0 and c.arg > d.arg and c.arg % d.arg == 0),
        Rule("floordiv_symbolic", x // y, lambda x, y: (p := _symbolic(x, y)) and p[0], kind="index",
             when=lambda y: y.op is not Ops.CONST),
        Rule("mod_symbolic", x % y, lambda x, y: (p := _symbolic(x, y)) and p[1], kind="index",
             when=lambda y: y.op is not Ops.CONST),
    ],
    laws=True,
)  # fmt: skip
