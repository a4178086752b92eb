"""Division with NumPy's meaning from the machine's instructions, and integer powers of ints.

When: in `decompose`. Why there: the bounds of operands are final, and show which checks can be omitted. Machines have
CDIV, which traps or is undefined for a divisor of 0 and for the smallest int by -1. Guarantees: no CDIV or CMOD is made
that could meet either. Mathematics: floor(a/b) is trunc(a/b), minus 1 if there is a remainder and the signs differ.
Tests: tests/compiler/lower/test_division.py; floats are sampled.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from kernmill.ir import Ops, Rule, RuleSet, UOp, dtypes, node, var

from .split_float import copy_sign, fused, literal, magnitude

__all__ = ["DIVISION"]


# --- ints ------------------------------------------------------------------------------------------------------------
def _power_of_two(b: UOp) -> int | None:
    """k where b is the constant 2**k."""
    return b.arg.bit_length() - 1 if b.is_const and b.arg > 0 and b.arg & (b.arg - 1) == 0 else None


def _never_negative(*values: UOp) -> bool:
    return all(v.bounds[0] >= 0 for v in values)


def _safe(a: UOp, b: UOp) -> tuple[UOp, UOp | None]:
    """Return a divisor that cannot trap (1 for 0 and -1), and the condition b == 0, or None if that is impossible."""
    low, high = b.bounds
    safe, zero = b, b.eq(0) if low <= 0 <= high else None
    if low <= -1 <= high and a.bounds[0] == a.dtype.min:
        safe = b.eq(-1).where(b.like(1), safe)
    return safe if zero is None else zero.where(b.like(1), safe), zero


def floordiv_to_cdiv(a: UOp, b: UOp) -> UOp | None:
    """floor(a / b) of ints; by 0 it is 0, smallest // -1 wraps."""
    shift = _power_of_two(b)
    if shift is not None:
        return a >> shift if shift else a
    safe, zero = _safe(a, b)
    quotient = a.alu(Ops.CDIV, safe)
    if not _never_negative(a, b):
        inexact = (a - quotient * safe).ne(0)
        quotient = (inexact & ((a ^ safe) < 0)).where(quotient - 1, quotient)
        if safe is not b and b.bounds[0] <= -1 <= b.bounds[1]:
            quotient = b.eq(-1).where(-a, quotient)
    return quotient if zero is None else zero.where(a.like(0), quotient)


def mod_to_cmod(a: UOp, b: UOp) -> UOp | None:
    """a - b * floor(a / b) of ints, with the sign of b. It is 0 by 0 and by -1, as by the safe divisor 1."""
    shift = _power_of_two(b)
    if shift is not None:
        return a & (int(b.arg) - 1)
    safe, _ = _safe(a, b)
    rest = a.alu(Ops.CMOD, safe)
    if _never_negative(a, b):
        return rest
    return (rest.ne(0) & ((rest ^ safe) < 0)).where(rest + safe, rest)


def pow_by_squaring(a: UOp, b: UOp) -> UOp | None:
    """a ** b of ints by squaring over the bits of b, wrapping. Negative b: right for 1 and -1, 0 for all else."""
    low, high = (int(bound) for bound in b.bounds)
    result, square = a.like(1), a
    bits = max(high, 0).bit_length()
    for i in range(bits):
        if not b.is_const:
            result = (b & (1 << i)).ne(0).where(result * square, result)
        elif b.arg >> i & 1:
            result = result * square
        square = square * square
    if low >= 0:
        return result
    inverse = a.eq(-1).where((b & 1).eq(0).where(a.like(1), a), a.eq(1).where(a, a.like(0)))
    return (b < 0).where(inverse, result)


# --- floats ----------------------------------------------------------------------------------------------------------
def _in_float32(fn: Callable[[UOp, UOp], UOp], a: UOp, b: UOp) -> UOp:
    return fn(a.cast(dtypes.float32), b.cast(dtypes.float32)).cast(a.dtype.scalar)


def _remainder(a: UOp, b: UOp) -> tuple[UOp, UOp]:
    """Return C's fmod, the remainder with the sign of a; and where floor(a / b) is trunc(a / b) - 1."""
    abs_a, abs_b, infinite = magnitude(a), magnitude(b), literal(a, math.inf)
    remainder = fused(-(abs_a / abs_b).alu(Ops.TRUNC), abs_b, abs_a)
    remainder = (remainder < 0).where(remainder + abs_b, remainder)  # the quotient was rounded up
    remainder = (abs_b <= remainder).where(remainder - abs_b, remainder)
    remainder = ((remainder < 0) | (abs_b <= remainder)).where(literal(a, 0.0), remainder)
    remainder = abs_b.eq(infinite).where((abs_a < infinite).where(abs_a, literal(a, math.nan)), remainder)
    return copy_sign(magnitude(remainder), a), remainder.ne(0) & (a < 0).ne(b < 0)


def float_mod(a: UOp, b: UOp) -> UOp:
    """np.mod: the remainder with the sign of b; nan for b = 0 or infinite a; a, or b itself, for infinite b.

    Exact while |a / b| < 2**fraction (8e6 in float32, 4e15 in float64). Beyond, where the exact remainder would take a
    loop over the bits of the quotient, the result is wrong, but between 0 and b.
    """
    if a.dtype.bits < 32:
        return _in_float32(float_mod, a, b)
    remainder, signs_differ = _remainder(a, b)
    return remainder.eq(0).where(copy_sign(magnitude(remainder), b), signs_differ.where(remainder + b, remainder))


def float_floordiv(a: UOp, b: UOp) -> UOp:
    """np.floor_divide: (a - remainder) / b; a / b for b = 0, nan for infinite a. Exact where float_mod is."""
    if a.dtype.bits < 32:
        return _in_float32(float_floordiv, a, b)
    remainder, signs_differ = _remainder(a, b)
    exact = (a - remainder) / b
    quotient = signs_differ.where(exact - 1, exact)
    floor = quotient.alu(Ops.FLOOR)
    floor = (literal(a, 0.5) < quotient - floor).where(floor + 1, floor)  # a - remainder was rounded
    zero = (a / b) * literal(a, 0.0)  # with the sign of the quotient
    return b.eq(0).where(a / b, quotient.eq(0).where(zero, floor))


DIVISION = RuleSet(
    "division",
    [
        Rule("floordiv_to_cdiv", node(Ops.FLOORDIV, var("a"), var("b")), floordiv_to_cdiv, kind="int"),
        Rule("mod_to_cmod", node(Ops.MOD, var("a"), var("b")), mod_to_cmod, kind="int"),
        Rule("pow_by_squaring", node(Ops.POW, var("a"), var("b")), pow_by_squaring, kind="int"),
        Rule("floordiv_of_floats", node(Ops.FLOORDIV, var("a"), var("b")), float_floordiv, kind="float"),
        Rule("mod_of_floats", node(Ops.MOD, var("a"), var("b")), float_mod, kind="float"),
    ],
)  # fmt: skip
