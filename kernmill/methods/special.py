"""Tensor methods: special functions of probability and physics: gamma, error and Bessel functions.

Each is a formula over the functions of the op table, with its own gradient: asymptotic series for large arguments, and
for small ones recurrences, power series or a polynomial. Half types are computed in float32. Accuracy is that of
tests/kernmill/methods/test_special.py, against mpmath.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from kernmill.ir import GradientError, SettingError, dtypes

from ..lazy import Lazy
from .elementwise import choose
from .factors import linked
from .functions import in_float32
from .spectral import Spectral

if TYPE_CHECKING:
    from ..lazy import Operand

__all__ = ["FAR", "STIRLING", "Special"]

# log(gamma(x)) / ((x - 1) (x - 2)) on [1, 2] in 2x - 3, highest power first: interpolated at Chebyshev's points with
# 50 digits. (1 + 2x) exp(x^2) erfc(x) as a series of Chebyshev polynomials in (x - 3.75) / (x + 3.75): the same way;
# the variable is that of Shepherd and Laframboise (1981).
_LGAMMA = (
    1.2510413599689193e-12, -3.803618166622364e-12, 4.705387815328221e-12, -1.5395748006420787e-11,
    6.659994986020335e-11, -2.0874620693971093e-10, 6.34708063084356e-10, -2.016947955623982e-09,
    6.448537660005262e-09, -2.0621027431854287e-08, 6.622899723826762e-08, -2.1386323384115519e-07,
    6.948461695085761e-07, -2.2742474102383936e-06, 7.511391134979752e-06, -2.5094328668947195e-05,
    8.510090382507709e-05, -0.0002945507015196472, 0.0010498186644489656, -0.003913560937626182, 0.01572785026864124,
    -0.07297994795715304, 0.4831289505409809,
)  # fmt: skip
_ERFCX = (
    1.1775789345674017, -0.004590054580646478, -0.08424913336651792, 0.05920993999819189, -0.026658668435305753,
    0.009074997670705265, -0.002413163540417608, 0.0004907758365258086, -6.916973302501207e-05, 4.13902798607301e-06,
    7.74038306619849e-07, -2.1886401049234397e-07, 1.076499946567091e-08, 4.521959811218287e-09,
    -7.754400208831351e-10, -6.318088340886684e-11, 2.86879501093067e-11, 1.9455868545777347e-13,
    -9.65469674843344e-13, 3.25254814814874e-14, 3.3478119482868056e-14, -1.864562880419313e-15,
    -1.2507950530688648e-15, 7.418235256624044e-17, 5.068148904796111e-17, -2.2370566594359995e-18,
)  # fmt: skip
# asymptotic series: of log(gamma(x)) in 1 / x^2 over x, of digamma, and of the Hurwitz zeta function
STIRLING = (-3617 / 122400, 1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)
_DIGAMMA = (-3617 / 8160, 1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330)
FAR = 8  # from here on eight terms of these series are exact to float64
_ZETA_TERMS = 10  # that are added before the rest is taken from its series

# Inverse of the normal distribution: Wichura, Algorithm AS 241 (1988), PPND16; highest power first.
_NEAR = ((2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
          13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.3871328727963666080),
         (5226.4952788528545610, 28729.085735721942674, 39307.895800092710610, 21213.794301586595867,
          5394.1960214247511077, 687.18700749205790830, 42.313330701600911252, 1.0))  # fmt: skip
_TAIL = ((7.7454501427834140764e-4, 0.0227238449892691845833, 0.241780725177450611770, 1.27045825245236838258,
          3.64784832476320460504, 5.76949722146069140550, 4.63033784615654529590, 1.42343711074968357734),
         (1.05075007164441684324e-9, 5.47593808499534494600e-4, 0.0151986665636164571966, 0.148103976427480074590,
          0.689767334985100004550, 1.67638483018380384940, 2.05319162663775882187, 1.0))  # fmt: skip
_FAR_TAIL = ((2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3,
              0.0265321895265761230930, 0.296560571828504891230, 1.78482653991729133580, 5.46378491116411436990,
              6.65790464350110377720),
             (2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5,
              7.86869131145613259100e-4, 0.0148753612908506148525, 0.136929880922735805310, 0.599832206555887937690,
              1.0))  # fmt: skip


class Special(Spectral):
    """Gamma, error and Bessel functions."""

    def _with_slope(self, value: Callable[[Any], Any], slope: Callable[[Any], Any]) -> Self:
        """value(x) with the derivative slope(x)."""
        x = self._floating()._anchored()
        made: Self = value(x)
        return linked(made, [x], lambda sources, grad: [grad.mul(slope(sources[0]))])

    # --- gamma
    @in_float32
    def lgamma(self) -> Self:
        """log(|gamma(x)|); inf at 0 and negative integers.

        Dtypes: within 4 units in the last place for x > 0; for x < 0 as near as its zeros allow.
        """
        return self._with_slope(_lgamma, lambda x: x.digamma())

    @in_float32
    def digamma(self) -> Self:
        """The derivative of `lgamma`; nan at negative integers."""
        return self._with_slope(_digamma, lambda x: x.polygamma(1))

    @in_float32
    def polygamma(self, n: int) -> Self:
        """The n-th derivative of `digamma`. For x < 0 the first one only, others are nan.

        Raises:
            SettingError: n is not an integer from 0 to 30.
        """
        if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= 30:
            raise SettingError(f"polygamma: n={n!r}: must be an integer from 0 to 30.")
        if not n:
            return self.digamma()
        return self._with_slope(lambda x: _polygamma(x, n), lambda x: x.polygamma(n + 1))

    @in_float32
    def zeta(self, q: Operand) -> Self:
        """Hurwitz' zeta function, the sum of (k + q) ** -x over k from 0, for x > 1 and q > 0; its gradient by q.

        Raises:
            GradientError: x requires a gradient.
        """
        s, q = self._floating()._join(q)
        if s.requires_grad:
            raise GradientError("zeta: there is no gradient by the exponent. Give x.detach().")
        s = s.detach()
        s, q = s.broadcast_tensors(q)
        q = q._anchored()
        bad = s.lt(1).logical_or(q.detach().le(0))
        found: Self = choose(s.eq(1), s._filled(math.inf), choose(bad, s._filled(math.nan), _zeta(s, q)))
        return linked(found, [q], lambda sources, grad: [grad.mul(s.add(1).zeta(sources[0]).mul(s.neg()))])

    # --- error functions
    @in_float32
    def erfc(self) -> Self:
        """1 - erf(x), exact for large x."""
        return self._with_slope(_erfc, lambda x: x.square().neg().exp().mul(-2 / math.sqrt(math.pi)))

    @in_float32
    def erfinv(self) -> Self:
        """The inverse of `erf`: inf at 1, nan beyond."""
        return self._with_slope(_erfinv, lambda x: x.erfinv().square().exp().mul(math.sqrt(math.pi) / 2))

    # --- Bessel functions
    @in_float32
    def i0(self) -> Self:
        """The modified Bessel function of order 0."""
        return self._with_slope(lambda x: _bessel(x, 0, is_scaled=False), lambda x: x.i1())

    @in_float32
    def i0e(self) -> Self:
        """exp(-|x|) i0(x)."""
        return self._with_slope(lambda x: _bessel(x, 0), lambda x: x.i1e().sub(x.sign().mul(x.i0e())))

    @in_float32
    def i1(self) -> Self:
        """The modified Bessel function of order 1."""
        return self._with_slope(lambda x: _bessel(x, 1, is_scaled=False), lambda x: x.i0().sub(_by(x.i1(), x)))

    @in_float32
    def i1e(self) -> Self:
        """exp(-|x|) i1(x)."""
        return self._with_slope(
            lambda x: _bessel(x, 1), lambda x: x.i0e().sub(_by(x.i1e(), x)).sub(x.sign().mul(x.i1e()))
        )

    # --- logarithms and sines
    @in_float32
    def sinc(self) -> Self:
        """sin(pi x) / (pi x), 1 at 0."""
        return self._with_slope(_sinc, _sinc_slope)

    @in_float32
    def logit(self, eps: float | None = None) -> Self:
        """log(x / (1 - x)); with `eps` of values clamped to eps .. 1 - eps."""
        x = self._floating() if eps is None else self._floating().clamp(eps, 1 - eps)
        return x.log().sub(x.neg().log1p())

    @in_float32
    def xlogy(self, other: Operand) -> Self:
        """x log(y), 0 where x is 0 and y is not nan."""
        x, y = self._floating()._join(other)
        is_zero = x.eq(0).logical_and(y.isnan().logical_not())
        return choose(is_zero, x._filled(0), x.mul(choose(is_zero, y._filled(1), y).log()))


# --- formulas of constants to gradients ------------------------------------------------------------------------------
def _sine(x: Any) -> Any:
    """sin(pi x): of a reduced argument, so that it is 0 at integers."""
    whole = x.round()
    sign = choose(whole.mul(0.5).sub(whole.mul(0.5).floor()).eq(0), x._filled(1), x._filled(-1))
    return x.sub(whole).mul(math.pi).sin().mul(sign)


def _cosine(x: Any) -> Any:
    return _sine(x.add(0.5))


def _by(a: Any, x: Any, at_zero: float = 0.5) -> Any:
    """a / x with a limit at 0."""
    is_zero = x.eq(0)
    return choose(is_zero, x._filled(at_zero), a.div(choose(is_zero, x._filled(1), x)))


def _sinc(x: Any) -> Any:
    return _by(_sine(x).div(math.pi), x, 1.0)


def _sinc_slope(x: Any) -> Any:
    square = x.square().mul(math.pi**2)
    near = x.mul(-(math.pi**2) / 3).mul(square._polynomial((-1 / 15120, 1 / 280, -1 / 10, 1.0)))
    return choose(x.abs().lt(0.1), near, _by(_cosine(x).sub(_sinc(x)), x, 0.0))


def _lgamma(x: Any) -> Any:
    size = x.abs()
    is_far = size.ge(FAR)
    near = choose(is_far, x._filled(1.5), size)
    y, product = near, x._filled(1)
    for _ in range(FAR - 2):
        is_more = y.gt(2)
        y = choose(is_more, y.sub(1), y)
        product = choose(is_more, product.mul(y), product)
    is_small = near.lt(1)
    y1, y2 = choose(is_small, near, y.sub(1)), choose(is_small, near.sub(1), y.sub(2))
    terms = _LGAMMA if x.dtype is dtypes.float64 else _LGAMMA[-11:]
    core = y1.mul(y2).mul(y1.add(y2)._polynomial(terms))
    close = core.add(choose(is_small, near.reciprocal(), product).log())
    far = choose(is_far, size, x._filled(FAR))
    inverse = far.reciprocal()
    series = inverse.mul(inverse.mul(inverse)._polynomial(STIRLING))
    large = far.sub(0.5).mul(far.log().sub(1)).add(0.5 * math.log(2 * math.pi) - 0.5).add(series)
    value = choose(is_far, large, close)
    mirror = _sine(size).mul(size).abs()
    mirrored = mirror.reciprocal().mul(math.pi).log().sub(value)
    return choose(x.lt(0), choose(size.isinf(), size, mirrored), value)


def _digamma(x: Any) -> Any:
    is_left = x.lt(0)
    y = choose(is_left, x.sub(1, reverse=True), x)
    is_near = y.lt(FAR)
    far = choose(is_near, y.add(FAR), y)
    near = choose(is_near, y, x._filled(1))
    inverse = far.reciprocal()
    square = inverse.mul(inverse)
    value = far.log().sub(inverse.mul(0.5)).sub(square.mul(square._polynomial(_DIGAMMA)))
    steps = near.reciprocal()
    for k in range(1, FAR):
        steps = steps.add(near.add(k).reciprocal())
    value = choose(is_near, value.sub(steps), value)
    apart = x.sub(x.round())
    mirrored = value.sub(apart.mul(math.pi).tan().reciprocal().mul(math.pi))
    return choose(is_left, choose(apart.eq(0), x._filled(math.nan), mirrored), value)


def _polygamma(x: Any, n: int) -> Any:
    is_left = x.lt(0)
    y = choose(is_left, x.sub(1, reverse=True), x)
    value = _zeta(n + 1, y).mul((-1) ** (n + 1) * math.factorial(n))
    if n > 1:
        return choose(is_left, x._filled(math.nan), value)
    mirrored = _sine(x).reciprocal().mul(math.pi).square().sub(value)
    return choose(is_left, mirrored, value)


def _zeta(s: Any, q: Any) -> Any:
    """Euler and Maclaurin's sum; s is a number or a tensor."""

    def power(x: Any, exponent: Any) -> Any:
        return x.pow(exponent if isinstance(exponent, Lazy) else float(exponent))

    minus = -s
    total = power(q, minus)
    for k in range(1, _ZETA_TERMS):
        total = total.add(power(q.add(k), minus))
    w = q.add(_ZETA_TERMS)
    last, square = power(w, minus), w.square().reciprocal()
    total = total.add(last.mul(w).div(s - 1)).add(last.mul(0.5))
    factor = last.div(w).mul(s)
    for j, number in enumerate(_BERNOULLI, 1):
        total = total.add(factor.mul(number / math.factorial(2 * j)))
        factor = factor.mul((s + (2 * j - 1)) * (s + 2 * j)).mul(square)
    return choose(w.isinf(), w._filled(0), total)


def _series(coefficients: Sequence[float], t: Any) -> Any:
    """A sum of Chebyshev polynomials, by Clenshaw's recurrence."""
    double = t.mul(2)
    last, now = t._filled(0), t._filled(coefficients[-1])
    for c in coefficients[-2:0:-1]:
        last, now = now, double.mul(now).sub(last).add(c)
    return t.mul(now).sub(last).add(coefficients[0])


def _erfc(x: Any) -> Any:
    is_wide = x.dtype is dtypes.float64
    size = x.abs().minimum(28.0 if is_wide else 12.0)
    value = _series(_ERFCX if is_wide else _ERFCX[:14], size.sub(3.75).div(size.add(3.75)))
    scale = 2.0**20 if is_wide else 2.0**6  # the square of the rounded size is exact
    high = size.mul(scale).round().div(scale)
    power = high.square().neg().exp().mul(size.sub(high).mul(size.add(high)).neg().exp())
    value = value.mul(power).div(size.mul(2).add(1))
    return choose(x.lt(0), value.sub(2, reverse=True), value)


def _erfinv(x: Any) -> Any:
    size = x.abs()
    is_near = size.le(0.85)
    center = choose(is_near, size, x._filled(0)).mul(0.5)
    inner = center.square().sub(0.180625, reverse=True)
    value = center.mul(inner._polynomial(_NEAR[0])).div(inner._polynomial(_NEAR[1]))
    rest = choose(is_near, x._filled(0.25), size.sub(1, reverse=True).mul(0.5))
    root = rest.log().neg().sqrt()
    is_far = root.gt(5)
    low, high = choose(is_far, x._filled(0), root.sub(1.6)), choose(is_far, root.sub(5), x._filled(0))
    high = choose(high.isinf(), x._filled(0), high)
    tail = low._polynomial(_TAIL[0]).div(low._polynomial(_TAIL[1]))
    far = high._polynomial(_FAR_TAIL[0]).div(high._polynomial(_FAR_TAIL[1]))
    value = choose(is_near, value, choose(is_far, far, tail)).mul(math.sqrt(0.5))
    value = choose(size.eq(1), x._filled(math.inf), value)
    return choose(x.lt(0), value.neg(), choose(x.eq(0), x, value))


def _bessel(x: Any, order: int, *, is_scaled: bool = True) -> Any:
    """I of order 0 or 1: its power series up to an end, from where on its asymptotic one is exact."""
    end, terms, far_terms = (20.0, 37, 26) if x.dtype is dtypes.float64 else (10.0, 19, 10)
    size = x.abs()
    is_far = size.gt(end)
    near = choose(is_far, x._filled(0), size)
    coefficients = tuple(1 / (math.factorial(k) * math.factorial(k + order)) for k in reversed(range(terms)))
    close = near.square().mul(0.25)._polynomial(coefficients)
    close = close.mul(near.mul(0.5)) if order else close
    far = choose(is_far, size, x._filled(end))
    asymptotic = [1.0]
    for k in range(1, far_terms):
        asymptotic.append(asymptotic[-1] * ((2 * k - 1) ** 2 - 4 * order) / (8 * k))
    wide = far.reciprocal()._polynomial(tuple(reversed(asymptotic))).mul(far.mul(2 * math.pi).rsqrt())
    wide = choose(size.isinf(), x._filled(0), wide)
    if is_scaled:
        close = close.mul(near.neg().exp())
    else:
        half = far.mul(0.5).exp()  # twice, so that it overflows no sooner than it must
        wide = choose(size.isinf(), size, wide.mul(half).mul(half))
    value = choose(is_far, wide, close)
    value = choose(x.isnan(), x, value)
    return choose(x.lt(0), value.neg(), value) if order else value
