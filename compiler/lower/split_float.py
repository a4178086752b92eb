"""Building blocks of transcendental.py as UOps: exponents, signs, clamps, polynomials.

Everything supports float32 and float64, scalar or vector, with ints of the same width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernmill.ir import DType, Ops, UOp, bits_of, dtypes, to_dtype

from .coefficients import POLYNOMIALS

__all__ = [
    "Format", "clamp", "copy_sign", "fma", "fma_in_parts", "format_of", "fused", "high_low", "literal", "magnitude",
    "nearest", "polynomial", "power_of_two", "scale_in_steps", "split",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Format:
    """The layout of an IEEE float."""

    bits: int
    fraction: int  # bits after the point
    uint: DType

    @property
    def bias(self) -> int:
        """The exponent field of 1.0."""
        return (1 << (self.bits - self.fraction - 2)) - 1

    @property
    def magic(self) -> float:
        """Added to |x| < 2**(fraction - 1) it rounds x to an integer and leaves that integer in the low bits."""
        return 1.5 * 2.0**self.fraction

    @property
    def sign_bit(self) -> int:
        """The uppermost bit."""
        return 1 << (self.bits - 1)


_FORMATS = {32: Format(32, 23, dtypes.uint32), 64: Format(64, 52, dtypes.uint64)}


def format_of(x: UOp) -> Format:
    """The layout of a float32 or float64 value."""
    return _FORMATS[x.dtype.bits]


def literal(x: UOp, value: float) -> UOp:
    """A constant like `x`, rounded to its dtype."""
    return x.like(to_dtype(x.dtype.scalar, value))


def fma(a: UOp, b: UOp | float, c: UOp | float) -> UOp:
    """a*b + c."""
    b, c = (v if isinstance(v, UOp) else literal(a, v) for v in (b, c))
    return a.alu(Ops.FMA, b, c)


def fused(a: UOp, b: UOp | float, c: UOp | float) -> UOp:
    """a*b + c, rounded once on every target."""
    return fma(a, b, c).replace(arg=1)


def fma_in_parts(a: UOp, b: UOp, c: UOp) -> UOp:
    """Compute an FMA by products and sums: their rounding errors are computed exactly by halves (Dekker) and
    differences (Knuth), and added at the end. Halves are split by their bits, as products would overflow. Rounded
    twice if a*b or a sum overflows."""
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    high = a * b
    low = a_low * b_low - (high - a_high * b_high - a_low * b_high - a_high * b_low)
    total = high + c
    back = total - high
    whole = total + ((high - (total - back)) + (c - back) + low)
    return whole.eq(whole).where(whole, total)


def _halves(v: UOp) -> tuple[UOp, UOp]:
    """Two floats that make v, each of half as many bits."""
    f = format_of(v)
    cut = f.fraction // 2 + 1
    high = ((v.bitcast(f.uint) + (1 << cut - 1)) & ((1 << f.bits) - (1 << cut))).bitcast(v.dtype.scalar)
    return high, v - high


def high_low(x: UOp, value: float, rest: float, *, short: bool = False) -> tuple[float, float]:
    """Split a constant into two numbers of the dtype of `x`: `value` is its nearest float64, `rest` the remainder.

    `short` leaves enough bits of the first word 0 that its product with any exponent is exact even without a fused FMA.
    """
    f = format_of(x)
    step = 2.0 ** (f.fraction - (f.bits - f.fraction))
    high = round(value * step) / step if short else to_dtype(x.dtype.scalar, value)
    return high, to_dtype(x.dtype.scalar, (value - high) + rest)


def polynomial(t: UOp, name: str) -> UOp:
    """The polynomial of that name in t. Long ones in two chains, even and odd, for half the latency."""
    coefficients = POLYNOMIALS[name][t.dtype.bits]
    if len(coefficients) > 9:
        square = t * t
        return fma(t, _polynomial_in(square, coefficients[1::2]), _polynomial_in(square, coefficients[::2]))
    return _polynomial_in(t, coefficients)


def _polynomial_in(t: UOp, coefficients: Sequence[float]) -> UOp:
    total = t.like(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = fma(total, t, c)
    return total


def clamp(x: UOp, low: float | None, high: float) -> UOp:
    """x between two bounds; nan stays nan. Each side is the one instruction that takes its second operand for nan."""
    top = literal(x, high)
    x = (top < x).where(top, x)
    if low is None:
        return x
    bottom = literal(x, low)
    return (x < bottom).where(bottom, x)


def magnitude(x: UOp) -> UOp:
    """|x| by its bits."""
    f = format_of(x)
    return (x.bitcast(f.uint) & (f.sign_bit - 1)).bitcast(x.dtype.scalar)


def copy_sign(value: UOp, sign: UOp) -> UOp:
    """`value`, whose sign bit is clear, with the sign of another."""
    f = format_of(value)
    return (value.bitcast(f.uint) | (sign.bitcast(f.uint) & f.sign_bit)).bitcast(value.dtype.scalar)


def nearest(x: UOp, scale: float, offset: int) -> tuple[UOp, UOp]:
    """Return n, the integer nearest to x*scale, and an int whose low bits are n + offset. |n| < 2**(fraction - 2)."""
    f = format_of(x)
    total = x + literal(x, f.magic + offset) if scale == 1 else fma(x, scale, f.magic + offset)
    return total - literal(x, f.magic + offset), total.bitcast(f.uint)


def power_of_two(biased: UOp, like: UOp) -> UOp:
    """2**(low bits of `biased` - bias), for results that are normal numbers; 0 where the low bits are 0."""
    return (biased << format_of(like).fraction).bitcast(like.dtype.scalar)


def scale_in_steps(value: UOp, n: UOp) -> UOp:
    """value * 2**n in two factors, so that overflow and denormals are right. |n| <= 2*bias."""
    f = format_of(value)
    offset = literal(n, f.magic + 2 * f.bias)
    total = n.src[0] if n.op is Ops.SUB and n.src[1] is offset else n + offset  # as `nearest` has it
    half = (biased := total.bitcast(f.uint)) >> 1
    return value * power_of_two(half, value) * power_of_two(biased - half, value)


def split(x: UOp) -> tuple[UOp, UOp]:
    """x = m * 2**e with m between sqrt(1/2) and sqrt(2), for x > 0, denormals too; both as floats."""
    f = format_of(x)
    root = {32: 0x3F3504F3, 64: 0x3FE6A09E667F3BCD}[f.bits]  # the bits of sqrt(1/2)
    tiny = x < literal(x, 2.0 ** (1 - f.bias))  # the least normal number
    bits = tiny.where(x * literal(x, 2.0 ** (f.fraction + 1)), x).bitcast(f.uint)
    shifted = bits + ((f.bias << f.fraction) - root)
    m = ((shifted & ((1 << f.fraction) - 1)) + root).bitcast(x.dtype.scalar)
    e = ((shifted >> f.fraction) | bits_of(x.dtype.scalar, f.magic)).bitcast(x.dtype.scalar)
    bias = f.magic + f.bias
    return m, e - tiny.where(literal(x, bias + f.fraction + 1), literal(x, bias))
