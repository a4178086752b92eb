"""Transcendental functions as polynomial programs in the basic ops.

When: in lowering, for the ops a target does not have. Why here: dtypes are settled; the result is plain arithmetic.
Assumes: FMA rounds once. Where it rounds twice most lose one or two ulp; what must be exact is `fused`.
Guarantees: no branches, no tables in memory, no loops, no conversion between ints and floats, int lanes as wide as the
float lanes; scalars and vectors alike. nan, inf and -0 as NumPy. float16 and bfloat16 go through float32. SIN and COS
of float32 reduce their argument in float64 lanes; for a target without float64, in SINES_IN_WORDS, in uint64 ones.
Mathematics: at each function; the numbers come from tools/fit_polynomials.py. The errors stated (in ulp: the distance
of neighbours at the exact value) are what tests/compiler/lower/test_transcendental.py measures and holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

from kernmill.ir import Op, Ops, Rule, RuleSet, UOp, dtypes, node, var

from .coefficients import TURN_DIGITS, TWO_OVER_PI
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
    power_of_two,
    split,
)

__all__ = ["SINES_IN_WORDS", "TRANSCENDENTAL", "in_basic_ops"]


# --- constants as pairs: the nearest float64, and the remainder ---
_LN2 = 0.6931471805599453, 2.3190468138462996e-17
_LOG2_E = 1.4426950408889634, 2.0355273740931033e-17
_ERF_SATURATES = {32: 3.95, 64: 5.95}
_ERF_JOINT = {32: 1.13, 64: 1.0}
_ERF_CENTER = 1.25
_TANH_SATURATES = {32: 9.1, 64: 20.0}
_PI_WORDS = (0, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB)  # of 2/pi
_HALF_PI = 1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33
_TWO_OVER_LN2 = 2.8853900817779268, 4.0710547481862066e-17
_THIRD = 1 / 3, 1.850371707708594e-17


def exp_to_polynomial(x: UOp) -> UOp:
    """e**x = 2**n * e**r with n = round(x / log 2). Error: float32 1.1 ulp, float64 1.2 ulp; denormals right.

    The smallest n, that of -inf and of all masks, has a 0 for 2**n. A product too small for a float would cost a
    microcode assist, hundreds of cycles for each vector of masked scores.
    """
    f = format_of(x)
    x = clamp(x, -2 * f.bias * _LN2[0] + 0.2, (f.bias + 1 + 0.05) * _LN2[0])
    n, _ = nearest(x, _LOG2_E[0], 2 * f.bias)
    high, low = high_low(x, *_LN2, short=True)
    r = fma(n, -low, fma(n, -high, x))
    return fma(r, polynomial(r, "EXP"), 1.0).alu(Ops.SCALE, n)


def exp2_to_polynomial(x: UOp) -> UOp:
    """2**x = 2**n * 2**t with n = round(x). Error: float32 1.1 ulp, float64 1.2 ulp; see exp_to_polynomial."""
    f = format_of(x)
    x = clamp(x, -2.0 * f.bias, f.bias + 1.25)
    n, _ = nearest(x, 1, 2 * f.bias)
    t = x - n
    return fma(t, polynomial(t, "EXP2"), 1.0).alu(Ops.SCALE, n)


def log_to_polynomial(x: UOp) -> UOp:
    """log(m * 2**e) = e*log(2) + log(1 + t), t = m - 1. Error: float32 1.0 ulp, float64 1.0 ulp; denormal x right."""
    m, e = split(x)
    high, low = high_low(x, *_LN2, short=True)
    t = m - 1
    z = t * t
    tail = fma(z, fma(t, polynomial(t, "LOG"), -0.5), e * literal(x, low))
    return _log_special(x, fma(e, high, t + tail))


def log2_to_polynomial(x: UOp) -> UOp:
    """log2(m * 2**e) = e + log2(1 + t), t = m - 1. Error: float32 1.2 ulp, float64 1.2 ulp; denormal x right."""
    m, e = split(x)
    high, low = high_low(x, *_LOG2_E)
    t = m - 1
    return _log_special(x, e + fma(t, high, fma(t, low, (t * t) * polynomial(t, "LOG2"))))


def _log_special(x: UOp, result: UOp) -> UOp:
    infinite = literal(x, math.inf)
    at_most_0 = x.eq(0).where(-infinite, literal(x, math.nan))
    return x.eq(infinite).where(infinite, (x > 0).where(result, at_most_0))


def sin_to_polynomial(x: UOp, in_words: bool = False) -> UOp:
    """sin x from |x| = n*pi/2 + r, any finite x.

    Error: float32 1.6 ulp. float64 1.6 ulp for |x| < 2**50 (there neighbouring floats differ by a quarter of a radian).
    Beyond, 1e-15 absolute, which is many ulp next to the zeros: 2 ulp would take a fourth word for every argument.
    """
    f = format_of(x)
    sine, cosine, quadrant = _quarter(x, in_words)
    sign = ((quadrant << (f.bits - 2)) ^ x.bitcast(f.uint)) & f.sign_bit
    return _flip((quadrant & 1).eq(0).where(sine, cosine), sign)


def cos_to_polynomial(x: UOp, in_words: bool = False) -> UOp:
    """cos x from |x| = n*pi/2 + r; error of sin_to_polynomial."""
    f = format_of(x)
    sine, cosine, quadrant = _quarter(x, in_words)
    sign = ((quadrant + 1) << (f.bits - 2)) & f.sign_bit
    return _flip((quadrant & 1).eq(0).where(cosine, sine), sign)


def _quarter(x: UOp, in_words: bool) -> tuple[UOp, UOp, UOp]:
    """sin r, cos r and an int with the low bits of n, where |x| = n*pi/2 + r; nan for inf and nan."""
    reduce = _reduce if x.dtype.bits == 64 else _reduce_in_words if in_words else _reduce_in_double
    r, quadrant = reduce(x)
    z = r * r
    sine = fma(r * z, polynomial(z, "SIN"), r)
    cosine = fma(z * z, polynomial(z, "COS"), fma(z, -0.5, 1.0))
    return sine, cosine, quadrant


def _reduce_in_double(x: UOp) -> tuple[UOp, UOp]:
    """r and n of a float32, by float64: n + r*2/pi = |x| * 2/pi, less multiples of 4.

    A large float is a multiple of a large power of two, so the upper bits of 2/pi only add multiples of 4. Without them
    two words are enough in each of four ranges: the product with the first is less than 2**50.5, and of its 77 bits FMA
    leaves those below 1.
    """
    size = magnitude(x)
    wide = size.cast(dtypes.float64)
    half = x.op is Ops.CAST and x.src[0].dtype.scalar is dtypes.float16  # always in the first range
    high, low = (literal(wide, word) for word in TWO_OVER_PI[0][1:])
    for start, next_high, next_low in () if half else TWO_OVER_PI[1:]:
        near = size < literal(size, start)
        high, low = near.where(high, literal(wide, next_high)), near.where(low, literal(wide, next_low))
    magic = literal(wide, format_of(wide).magic)
    total = fma(wide, high, magic)
    y = fma(wide, low, fused(wide, high, magic - total))
    return (y * literal(y, math.pi / 2)).cast(dtypes.float32), total.bitcast(dtypes.uint64).cast(dtypes.uint32)


def _reduce_in_words(x: UOp) -> tuple[UOp, UOp]:
    """r and n of a float32 in integers: its 24 bits times the 96 bits of 2/pi that matter for its exponent.

    Bits before these add multiples of 4. Of the product's 120 bits the upper 24 do so too, and the lower 32 are not
    needed. 64 remain: 2 of n, and 62 of the fraction, which next to a multiple of pi/2 begins with 30 zeros at most.
    """
    size = magnitude(x)
    bits = size.bitcast(dtypes.uint32)
    exponent = bits >> 23
    start = exponent.alu(Ops.MAX, 126) - 120  # of the 96 bits in _PI_WORDS
    words = [size.bitcast(dtypes.uint32).like(_PI_WORDS[i + 4]).cast(dtypes.uint64) for i in range(4)]
    for first in (3, 2, 1, 0):
        near = start < 32 * (first + 1)
        words = [near.where(word.like(_PI_WORDS[i + first]), word) for i, word in enumerate(words)]
    by = (start & 31).cast(dtypes.uint64)
    a, b, c = (((high << 32 | low) << by) >> 32 for high, low in pairwise(words))
    m = (bits & 0x7FFFFF | 0x800000).cast(dtypes.uint64)
    turned = ((m * a) << 32) + m * b + ((m * c) >> 32) + (1 << 61)  # to a quarter of a turn
    rest = (turned & ((1 << 62) - 1)).bitcast(dtypes.int64) - (1 << 61)
    upper = rest.cast(dtypes.float32)
    lower = (rest - upper.cast(dtypes.int64)).cast(dtypes.float32)
    unit, more = high_low(x, math.ldexp(_HALF_PI[0], -62), math.ldexp(_HALF_PI[1], -62))
    r = fma(upper, unit, fma(upper, more, lower * unit))
    small, finite = size < literal(x, 0.78), size < literal(x, math.inf)
    quadrant = (turned >> 62).cast(dtypes.uint32)
    return small.where(size, finite.where(r, literal(x, math.nan))), small.where(quadrant.like(0), quadrant)


def _reduce(x: UOp) -> tuple[UOp, UOp]:
    """r and n of a float64: Cody and Waite's three words of pi/2 below 2**50, Payne and Hanek's beyond."""
    size = magnitude(x)
    n, quadrant = nearest(size, 2 / math.pi, 0)
    r = size
    for word in _HALF_PI:
        r = fused(n, -word, r)
    far_r, far_quadrant = _reduce_far(size)
    near = size < literal(size, 2.0**50)
    return near.where(r, far_r), near.where(quadrant, far_quadrant)


def _reduce_far(size: UOp) -> tuple[UOp, UOp]:
    """r and n from the three base-2**53 digits of 1/(2*pi) that matter for the exponent.

    A float64 from 2**(52 + 53*i) is a multiple of 2**(53*i): the first i digits add whole turns, and what follows the
    next three adds less than 2**-53 turns. They get to the front of the list in five steps, by 16, 8, 4, 2 and 1.
    """

    def word(digit: int, position: int) -> UOp:
        return literal(size, math.ldexp(TURN_DIGITS[digit], -53 * position))

    near = size < literal(size, 2.0 ** (52 + 53 * 16))
    x = rest = near.where(size, size * literal(size, 2.0 ** (-53 * 16)))  # or the words would be too small for a float
    last = len(TURN_DIGITS) - 16
    words = [near.where(word(i, i), word(i + 16, i)) if i < last else word(i, i) for i in range(18)]
    for by in (8, 4, 2, 1):
        near = rest < literal(size, 2.0 ** (52 + 53 * by))
        words = [near.where(words[i], words[i + by]) for i in range(by + 2)]
        rest = near.where(rest, rest * literal(size, 2.0 ** (-53 * by)))
    t = fused(x, words[0], -(x * words[0]).alu(Ops.ROUND))
    t = fused(x, words[1], t - fma(x, words[1], t).alu(Ops.ROUND))
    t = fma(x, words[2], t)
    magic = literal(size, format_of(size).magic / 4)
    total = t + magic  # to a quarter of a turn
    return (t - (total - magic)) * literal(size, 2 * math.pi), total.bitcast(dtypes.uint64)


def _flip(value: UOp, sign: UOp) -> UOp:
    return (value.bitcast(sign.dtype.scalar) ^ sign).bitcast(value.dtype.scalar)


def tanh_to_polynomial(x: UOp) -> UOp:
    """tanh|x| = u / (u + 2) with u = e**(2|x|) - 1 = 2**n * (e**2y - 1) + (2**n - 1). Error: 1.6 ulp in both dtypes.

    Near 0, where n = 0 and u = 2*y + v, it is y + (v - y*u) / (u + 2): the quotient only corrects y.
    """
    f = format_of(x)
    size = clamp(magnitude(x), None, _TANH_SATURATES[f.bits])
    n, biased = nearest(fma(size, 2 * _LOG2_E[0], -7 / 16), 1, f.bias)  # mostly downwards: u without cancellation
    high, low = high_low(x, _LN2[0] / 2, _LN2[1] / 2, short=True)
    y = fma(n, -low, fma(n, -high, size))
    v = (y * y) * polynomial(y, "EXPM1")
    scale = power_of_two(biased, x)
    u = fma((y + y) + v, scale, scale - 1)
    small = size < literal(x, 0.32)
    quotient = small.where(fma(-y, u, v), u) / (u + 2)
    return copy_sign(small.where(quotient + y, quotient), x)


def erf_to_polynomial(x: UOp) -> UOp:
    """erf x = x * P(x**2) where |x| is small, 1 - erfc|x| elsewhere. Error: 1.3 ulp in both dtypes.

    erfc is in float32 the fourth power of a short polynomial: half of the work of 2**Q(|x|), which float64 needs to
    stay exact enough.
    """
    f = format_of(x)
    size = clamp(magnitude(x), None, _ERF_SATURATES[f.bits])
    if f.bits == 32:
        root = polynomial(size - _ERF_CENTER, "ERFC")
        square = root * root
        large = fma(-square, square, 1.0)
    else:
        exponent = polynomial(size - 1, "ERFC_LONG")
        n, biased = nearest(exponent, 1, f.bias)
        t = exponent - n
        large = fma(-fma(t, polynomial(t, "EXP2"), 1.0), power_of_two(biased, x), 1.0)
    small = fma(x, polynomial(x * x, "ERF" if f.bits == 32 else "ERF_LONG"), x)
    return (size < literal(x, _ERF_JOINT[f.bits])).where(small, copy_sign(large, x))


# --- powers: 2**(y * log2|x|) with the logarithm in two words ---
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
    """log2(x) in two words for 0 < x < inf. With s = (m-1)/(m+1),
    `log2(m) = 2/log(2) * s * (1 + s**2/3 + s**4*A(s**2))`. As s**2 <= 0.03, only the first terms need the second word.
    """
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
    n, _ = nearest(inside, 1, 2 * f.bias)
    t = (inside - n) + low
    power = fma(t, polynomial(t, "EXP2"), 1.0).alu(Ops.SCALE, n)
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


# --- rounding, for targets that cannot ---
def round_to_magic(x: UOp) -> UOp:
    """To nearest, ties to even: 2**fraction added and taken away. Exact; -0, inf and nan stay."""
    f = format_of(x)
    size, limit = magnitude(x), literal(x, 2.0**f.fraction)
    return (size < limit).where(copy_sign((size + limit) - limit, x), x)


def floor_to_round(x: UOp) -> UOp:
    """Return the nearest integer, less 1 if that is above x."""
    near = round_to_magic(x)
    return (x < near).where(near - 1, near)


def ceil_to_floor(x: UOp) -> UOp:
    """-floor(-x), also for the sign of 0."""
    return -floor_to_round(-x)


def trunc_to_floor(x: UOp) -> UOp:
    """floor|x| with the sign of x."""
    return copy_sign(floor_to_round(magnitude(x)), x)


# --- the rules ---
_UNARY: dict[Op, Callable[[UOp], UOp]] = {
    Ops.EXP: exp_to_polynomial, Ops.EXP2: exp2_to_polynomial, Ops.LOG: log_to_polynomial, Ops.LOG2: log2_to_polynomial,
    Ops.SIN: sin_to_polynomial, Ops.COS: cos_to_polynomial, Ops.TANH: tanh_to_polynomial, Ops.ERF: erf_to_polynomial,
    Ops.ROUND: round_to_magic, Ops.FLOOR: floor_to_round, Ops.CEIL: ceil_to_floor, Ops.TRUNC: trunc_to_floor,
}  # fmt: skip


def in_basic_ops(op: Op, x: UOp, *rest: UOp) -> UOp | None:
    """`op` of these sources in basic ops; None for an op that is not one of these, or not of floats."""
    if not x.dtype.is_float or (op not in _UNARY and op is not Ops.POW):
        return None
    if x.dtype.bits < 32:
        wide = in_basic_ops(op, x.cast(dtypes.float32), *(r.cast(dtypes.float32) for r in rest))
        return None if wide is None else wide.cast(x.dtype.scalar)
    if op is not Ops.POW:
        return _UNARY[op](x)
    (y,) = rest
    short = pow_by_constant(x, y.arg) if y.is_const else None
    return short if short is not None else pow_to_polynomial(x, y)


def _rule(name: str, op: Op) -> Rule:
    x, y = var("x"), var("y")
    if op is Ops.POW:
        return Rule(name, node(op, x, y), lambda x, y: in_basic_ops(op, x, y), kind="float")
    return Rule(name, node(op, x), lambda x: in_basic_ops(op, x), kind="float")


TRANSCENDENTAL = RuleSet(
    "transcendental", [_rule(f.__name__, op) for op, f in {**_UNARY, Ops.POW: pow_to_polynomial}.items()]
)


def _sine_in_words(op: Op, program: Callable[[UOp, bool], UOp]) -> Rule:
    def expand(x: UOp) -> UOp | None:
        return None if x.dtype.bits == 64 else program(x.cast(dtypes.float32), True).cast(x.dtype.scalar)

    return Rule(f"{op.name.lower()}_in_words", node(op, var("x")), expand, kind="float")


# for targets without float64; these rules come before those above
SINES_IN_WORDS = RuleSet(
    "sines_in_words", [_sine_in_words(op, f) for op, f in ((Ops.SIN, sin_to_polynomial), (Ops.COS, cos_to_polynomial))]
)
