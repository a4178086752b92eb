"""POW of floats: 2**(y * log2|x|) with the logarithm in twice the precision.

When: in lowering, through transcendental.py. Why here: it is the longest of them. Guarantees: IEEE 754's special cases.
Mathematics: with s = (m-1)/(m+1), log2(m) = 2/log(2) * s * (1 + s**2/3 + s**4*A(s**2)); s**2 <= 0.03, so that only the
first terms need the second word. Tests: tests/compiler/lower/test_transcendental.py.
"""

from __future__ import annotations

import math

from kernmill.ir import Ops, UOp

from .split_float import (
    clamp,
    copy_sign,
    fma,
    format_of,
    fused,
    high_low,
    literal,
    magnitude,
    nearest,
    polynomial,
    power_of_two_in_steps,
    split,
)

__all__ = ["pow_by_constant", "pow_to_polynomial"]

# 2/log(2) and 1/3: the nearest float64 and what that leaves
_TWO_OVER_LN2 = 2.8853900817779268, 4.0710547481862066e-17
_THIRD = 1 / 3, 1.850371707708594e-17


def _product(a: UOp, b: UOp | float, low: UOp) -> tuple[UOp, UOp]:
    """a*b + low in two words, `low` being small."""
    b = b if isinstance(b, UOp) else literal(a, b)
    high = a * b
    return high, fused(a, b, -high) + low


def _sum(a: UOp, b: UOp) -> tuple[UOp, UOp]:
    """a + b in two words, for |a| >= |b| or a = 0."""
    high = a + b
    return high, b - (high - a)


def _log2(x: UOp) -> tuple[UOp, UOp]:
    """log2(x) in two words for 0 < x < inf."""
    m, e = split(x)
    k_high, k_low = high_low(x, *_TWO_OVER_LN2)
    third_high, third_low = high_low(x, *_THIRD)
    f, d = m - 1, m + 1
    d_low = m - (d - 1)
    inverse = literal(x, 1.0) / d
    s = f * inverse
    s_low = fma(-s, d_low, fused(-s, d, f)) * inverse
    p, p_low = _product(s, k_high, fma(s_low, k_high, s * literal(x, k_low)))
    z, z_low = _product(s, s, (s + s) * s_low)
    u, u_low = _product(z, third_high, fma(z_low, third_high, z * literal(x, third_low)))
    u_low = fma(z * z, polynomial(z, "ATANH"), u_low)
    q, q_low = _product(p, u, fma(p, u_low, p_low * u))
    part, part_low = _sum(p, q)
    total, total_low = _sum(e, part)
    return _sum(total, total_low + (part_low + (p_low + q_low)))


def pow_to_polynomial(x: UOp, y: UOp) -> UOp:
    """x ** y. Error: float32 1.2 ulp, float64 1.6 ulp. All special cases of IEEE 754, as NumPy."""
    f = format_of(x)
    size = magnitude(x)
    log_high, log_low = _log2(size)
    infinite = literal(x, math.inf)
    log_high = (size < infinite).where(log_high, size)  # inf and nan
    log_high = size.eq(0).where(literal(x, -math.inf), log_high)
    # |log2| is at least 2**-(fraction + 2), or 0: this exponent gives what any larger one gives, and nothing overflows
    limit = 2.0 ** (f.fraction + 2 + f.bits.bit_length() + 7)
    by = clamp(y, -limit, limit)
    high = by * log_high
    low = fused(by, log_high, -high) + by * log_low
    inside = clamp(high, -float(f.bias + f.fraction + 3), f.bias + 1.5)
    low = inside.eq(high).where(low, literal(x, 0.0))
    n, biased = nearest(inside, 1, 2 * f.bias)
    t = (inside - n) + low
    power = power_of_two_in_steps(fma(t, polynomial(t, "EXP2"), 1.0), biased)
    return _special_cases(x, y, power)


def _special_cases(x: UOp, y: UOp, power: UOp) -> UOp:
    """From |x| ** y to x ** y."""
    half = y * literal(y, 0.5)
    whole = y.alu(Ops.TRUNC).eq(y)
    odd = whole & half.alu(Ops.TRUNC).ne(half)
    negative = (x < 0) & (literal(x, -math.inf) < x)
    power = (negative & y.alu(Ops.TRUNC).ne(y)).where(literal(x, math.nan), power)
    power = odd.where(copy_sign(power, x), power)
    return (x.eq(1) | y.eq(0)).where(literal(x, 1.0), power)


def pow_by_constant(x: UOp, y: float) -> UOp | None:
    """x ** y for the exponents that need no logarithm: -2, -1, -0.5, 0, 0.5, 1, 2, 3, 4. Error: at most 2 ulp."""
    one = literal(x, 1.0)
    if y in (0, 1, 2, 3, 4):
        square = x * x
        return (one, x, square, square * x, square * square)[int(y)]
    if y in (-1, -2):
        inverse = one / x
        return inverse if y == -1 else inverse * inverse
    if y in (0.5, -0.5):
        root = x.eq(-math.inf).where(literal(x, math.inf), (x + literal(x, 0.0)).alu(Ops.SQRT))  # -0 + 0 is 0
        return root if y == 0.5 else one / root
    return None
