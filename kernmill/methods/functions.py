"""Tensor methods: elementwise functions. Ints go in as float32.

The op table has exp, exp2, log, log2, sin, cos, tanh, erf and sqrt; everything else is a formula over them. Each
formula has its bound in the docstring (units in the last place of float32, measured in
tests/kernmill/methods/test_functions.py). Formulas compute half types in float32: 1 + erf(-3) has no digit left in
float16.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from kernmill.ir import Op, Ops, dtypes, promote

from ..lazy import Lazy, accumulator
from .elementwise import choose
from .float_bits import FloatBits

if TYPE_CHECKING:
    from ..lazy import Operand

__all__ = ["Functions", "in_float32"]

# arctangent after reduction to |x| <= tan(pi/8), x <= 0.66: x + x*z*P(z)/Q(z), z = x*x. Source: Cephes atan.c, atanf.c
_ATAN_P = (-8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1,
           -1.228866684490136173410e2, -6.485021904942025371773e1)  # fmt: skip
_ATAN_Q = (1.0, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2,
           4.853903996359136964868e2, 1.945506571482613964425e2)  # fmt: skip
_ATAN_F32 = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
_LARGEST = {"float16": 65504.0, "bfloat16": 2.0**128 - 2.0**120, "float32": 2.0**128 - 2.0**104,
            "float64": math.nextafter(math.inf, 0.0)}  # fmt: skip


Formula = TypeVar("Formula", bound=Callable[..., Any])


def in_float32(formula: Formula) -> Formula:
    """Decorator of a method that is a formula: half types go through it in float32, and are rounded once."""

    @functools.wraps(formula)
    def wide(self: Any, *given: Any, **named: Any) -> Any:
        floating = self._floating()
        tensors = [t for t in (*given, *named.values()) if isinstance(t, Lazy)]
        if all(accumulator(t.dtype) is t.dtype for t in (floating, *tensors)):
            return formula(self, *given, **named)
        dtype = functools.reduce(promote, (t.dtype for t in tensors), floating.dtype)
        result = formula(_wide(floating), *(_wide(v) for v in given), **{k: _wide(v) for k, v in named.items()})
        return result.cast(dtype)

    return cast("Formula", wide)


def _wide(value: Any) -> Any:
    return value.cast(accumulator(value.dtype)) if isinstance(value, Lazy) else value


class Rounding(FloatBits):
    """Rounding to integers; ints are unchanged."""

    def _rounded(self, op: Op) -> Self:
        return self._apply(op) if self.dtype.is_float else self._own_box()

    def floor(self) -> Self:
        """Towards -inf."""
        return self._rounded(Ops.FLOOR)

    def ceil(self) -> Self:
        """Towards +inf."""
        return self._rounded(Ops.CEIL)

    def trunc(self) -> Self:
        """Towards zero."""
        return self._rounded(Ops.TRUNC)

    def round(self, *, decimals: int = 0) -> Self:
        """Round to the nearest, ties to even; with `decimals` to that many digits after the point, or before it."""
        if not self.dtype.is_float and decimals < 0:
            return self.cast(dtypes.float64).round(decimals=decimals).cast(self.dtype)
        if not decimals or not self.dtype.is_float:
            return self._rounded(Ops.ROUND)
        scale = 10.0 ** abs(operator.index(decimals))
        if decimals < 0:
            return self.div(scale)._rounded(Ops.ROUND).mul(scale)
        return self.mul(scale)._rounded(Ops.ROUND).div(scale)

    def frac(self) -> Self:
        """Return the fraction that `trunc` removes."""
        return self.sub(self.trunc())


class Functions(Rounding):
    """Exponentials, logarithms, roots and circular functions."""

    def _function(self, op: Op) -> Self:
        return self._floating()._apply(op)

    def exp(self) -> Self:
        """e ** x."""
        return self._function(Ops.EXP)

    def exp2(self) -> Self:
        """2 ** x."""
        return self._function(Ops.EXP2)

    def log(self) -> Self:
        """Natural logarithm; 0 gives -inf, x < 0 nan."""
        return self._function(Ops.LOG)

    def log2(self) -> Self:
        """Logarithm to base 2."""
        return self._function(Ops.LOG2)

    def log10(self) -> Self:
        """Logarithm to base 10, log2(x) / log2(10): within 2 units."""
        return self.log2().mul(math.log10(2.0))

    def log1p(self) -> Self:
        """log(1 + x), exact for small x: log(u) + (x - (u-1))/u with u = 1 + x. Within 2 units."""
        x = self._floating()
        u = x.add(1.0)
        is_usual = u.gt(0.0).logical_and(u.lt(math.inf))
        rest = x.sub(u.sub(1.0)).div(choose(is_usual, u, u._filled(1.0)))
        rest = choose(is_usual, rest, u._filled(0.0)).detach()
        return u.log().neg().sub(rest).neg()  # not their sum, which is 0.0 for -0.0

    @in_float32
    def expm1(self) -> Self:
        """exp(x) - 1, exact for small x: 2t/(1-t) with t = tanh(x/2) where |x| < 1. Within 4 units."""
        x = self._floating()
        is_small = x.abs().lt(1.0)
        t = choose(is_small, x, x._filled(0.0)).mul(0.5).tanh()
        return choose(is_small, t.mul(2.0).div(t.sub(1.0, reverse=True)), x.exp().sub(1.0))

    def logaddexp(self, other: Operand) -> Self:
        """log(exp(self) + exp(other)) without overflow; nan if either is nan."""
        a, b = self._floating()._join(other)
        dtype, wide = a.dtype, accumulator(a.dtype)
        a, b = a.cast(wide), b.cast(wide)
        is_less = a.lt(b)  # no maximum: where both are equal it would be shared, and have no second gradient
        top, low = choose(is_less, b, a), choose(is_less, a, b)
        apart = choose(a.eq(b).logical_and(a.isinf()), low._filled(0.0), low.sub(top))
        return top.add(apart.exp().log1p()).cast(dtype)

    def nan_to_num(self, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Self:
        """nan and infinities as numbers: without others, 0 and the largest and smallest that the dtype has."""
        if not self.dtype.is_float:
            return self._own_box()
        most = _LARGEST[self.dtype.name]
        low, high = -most if neginf is None else float(neginf), most if posinf is None else float(posinf)
        result = choose(self.eq(-math.inf), self._filled(low), choose(self.eq(math.inf), self._filled(high), self))
        return choose(self.isnan(), self._filled(float(nan)), result)

    def sqrt(self) -> Self:
        """Square root, correctly rounded; x < 0 gives nan."""
        return self._function(Ops.SQRT)

    def rsqrt(self) -> Self:
        """1 / sqrt(x)."""
        return self.sqrt().reciprocal()

    def erf(self) -> Self:
        """Error function."""
        return self._function(Ops.ERF)

    # --- circular
    def sin(self) -> Self:
        """Sine of radians."""
        return self._function(Ops.SIN)

    def cos(self) -> Self:
        """Cosine of radians."""
        return self._function(Ops.COS)

    @in_float32
    def tan(self) -> Self:
        """Tangent of radians."""
        return self.sin().div(self.cos())

    @in_float32
    def atan(self) -> Self:
        """Inverse tangent: Cephes' reduction and polynomial. Within 3 units."""
        x = self._floating()
        size = x.abs()
        is_large = size.gt(math.tan(3 * math.pi / 8))
        is_middle = size.gt(0.66 if x.dtype is dtypes.float64 else math.tan(math.pi / 8))
        top = choose(is_large, x._filled(-1.0), choose(is_middle, size.sub(1.0), size))
        bottom = choose(is_large, size, choose(is_middle, size.add(1.0), x._filled(1.0)))
        offset = choose(is_large, x._filled(math.pi / 2), choose(is_middle, x._filled(math.pi / 4), x._filled(0.0)))
        r = top.div(bottom)
        z = r.mul(r)
        if x.dtype is dtypes.float64:
            series = z.mul(z._polynomial(_ATAN_P)).div(z._polynomial(_ATAN_Q))
        else:
            series = z.mul(z._polynomial(_ATAN_F32))
        angle = offset.add(r.mul(series).add(r))
        return choose(x.lt(0.0), angle.neg(), choose(x.eq(0.0), x, angle))

    def atan2(self, other: Operand) -> Self:
        """The angle of the point (other, self), from -pi to pi; zeros and infinities with their signs, as in NumPy.

        Its gradient at (0, 0) is 0, as in PyTorch.
        """
        y, x = self._floating()._join(other)
        dtype = y.dtype
        y, x = (t._floating().cast(accumulator(t._floating().dtype)) for t in (y, x))
        is_steep = y.abs().gt(x.abs())
        top, bottom = choose(is_steep, x, y), choose(is_steep, y, x)
        has_no_slope = y.eq(0).logical_and(x.eq(0)).logical_or(y.isinf().logical_and(x.isinf()))
        ends = choose(y.isinf(), choose(y.signbit().ne(x.signbit()), y._filled(-1), y._filled(1)), y.detach())
        slope = choose(has_no_slope, ends, top.div(choose(has_no_slope, bottom._filled(1), bottom)))
        angle = slope.atan()
        half = choose(y.signbit(), y._filled(-math.pi / 2), y._filled(math.pi / 2))
        behind = choose(x.signbit(), half.mul(2), half._filled(0))
        flat = choose(x.signbit(), angle.add(behind), angle)
        return choose(is_steep, half.sub(angle), flat).cast(dtype)

    def _polynomial(self, coefficients: tuple[float, ...]) -> Self:
        """Horner's scheme, highest power first."""
        result = self._filled(coefficients[0])
        for c in coefficients[1:]:
            result = result.mul(self).add(c)
        return result

    @in_float32
    def asin(self) -> Self:
        """Inverse sine, 2 atan(x / (1 + cos)), cos = sqrt(1-x) sqrt(1+x): within 4 units; |x| > 1 gives nan."""
        x = self._floating()  # two roots: that of a product has a gradient of inf * 0 at its ends
        cosine = x.sub(1.0, reverse=True).sqrt().mul(x.add(1.0).sqrt())
        return x.div(cosine.add(1.0)).atan().mul(2.0)

    @in_float32
    def acos(self) -> Self:
        """Inverse cosine, 2 atan(sqrt(1-x) / sqrt(1+x)) of |x|: within 4 units; |x| > 1 gives nan."""
        x = self._floating()
        is_negative = x.lt(0.0)
        size = choose(is_negative, x.neg(), x)
        angle = size.sub(1.0, reverse=True).sqrt().div(size.add(1.0).sqrt()).atan().mul(2.0)
        return choose(is_negative, angle.sub(math.pi, reverse=True), angle)

    # --- hyperbolic
    def tanh(self) -> Self:
        """Hyperbolic tangent."""
        return self._function(Ops.TANH)

    @in_float32
    def sinh(self) -> Self:
        """Hyperbolic sine: 2t/(1-t*t) with t = tanh(x/2) where |x| < 1, else from exp(x/2) squared. Within 4 units."""
        x = self._floating()
        is_small = x.abs().lt(1.0)
        t = choose(is_small, x, x._filled(0.0)).mul(0.5).tanh()
        up, down = x.mul(0.5).exp(), x.mul(-0.5).exp()
        far = up.mul(0.5).mul(up).sub(down.mul(0.5).mul(down))
        return choose(is_small, t.mul(2.0).div(t.mul(t).sub(1.0, reverse=True)), far)

    @in_float32
    def cosh(self) -> Self:
        """Hyperbolic cosine, from exp(x/2) squared so that it overflows no sooner than it must. Within 4 units."""
        x = self._floating()
        up, down = x.mul(0.5).exp(), x.mul(-0.5).exp()
        return up.mul(0.5).mul(up).add(down.mul(0.5).mul(down))

    @in_float32
    def asinh(self) -> Self:
        """Inverse hyperbolic sine."""
        x = self._floating()
        is_negative, is_far = x.lt(0.0), x.abs().gt(1e4)
        size = choose(is_negative, x.neg(), x)
        near = choose(is_far, x._filled(0.0), size)
        square = near.mul(near)
        close = near.add(square.div(square.add(1.0).sqrt().add(1.0))).log1p()
        far = choose(is_far, size, x._filled(1.0)).log().add(math.log(2.0))  # chosen first: log has no gradient at 0
        result = choose(is_far, far, close)
        return choose(x.eq(0.0), x, choose(is_negative, result.neg(), result))  # -0.0 is itself

    @in_float32
    def acosh(self) -> Self:
        """Inverse hyperbolic cosine; x < 1 gives nan."""
        x = self._floating()
        is_far = x.gt(1e4)
        rest = choose(is_far, x._filled(1.0), x).sub(1.0)
        close = rest.add(rest.sqrt().mul(rest.add(2.0).sqrt())).log1p()
        return choose(is_far, x.log().add(math.log(2.0)), close)

    @in_float32
    def atanh(self) -> Self:
        """Inverse hyperbolic tangent, (log1p(x) - log1p(-x)) / 2; |x| > 1 gives nan."""
        x = self._floating()
        return choose(x.eq(0.0), x, x.log1p().sub(x.neg().log1p()).mul(0.5))  # -0.0 is itself

    @in_float32
    def sigmoid(self) -> Self:
        """1 / (1 + exp(-x)), without overflow in it or in its gradient."""
        x = self._floating()
        is_positive = x.ge(0.0)
        e = choose(is_positive, x.neg(), x).exp()
        return choose(is_positive, x._filled(1.0), e).div(e.add(1.0))
