"""Tensor methods: incomplete gamma and beta functions.

Each is an integral of a smooth, falling function: over log(t / x) of the gamma density, over the log-odds of the beta
density. The side whose integrand falls is computed, to the end where it is exp(-40), by Gauss and Legendre's rule; the
other side is 1 minus it. Densities of large shapes are those of Stirling's series, so that nothing large is subtracted.
Accuracy is that of tests/kernmill/methods/test_incomplete.py, against mpmath.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from kernmill.ir import GradientError

from .elementwise import choose
from .factors import linked
from .functions import in_float32
from .special import FAR, STIRLING, Special

if TYPE_CHECKING:
    from ..lazy import Operand

__all__ = ["Incomplete"]

_NODES = 64
_END = 40.0  # the integrand's exponent there: exp(-40) is below the last digit of float64
_BETA_SHAPE = 4  # smaller shapes take steps to here: the integral of a small one is long next to its bend
_STEPS = 8  # of Newton's method towards the end, from above


class Incomplete(Special):
    """Incomplete gamma and beta functions, regularized."""

    @in_float32
    def gammainc(self, x: Operand) -> Self:
        """The share of the gamma distribution of shape `self` below x, with its gradient by x.

        Raises:
            GradientError: the shape requires a gradient.
        """
        return self._gamma_share("gammainc", x, is_upper=False)

    @in_float32
    def gammaincc(self, x: Operand) -> Self:
        """1 - gammainc, exact where it is small.

        Raises:
            GradientError: the shape requires a gradient.
        """
        return self._gamma_share("gammaincc", x, is_upper=True)

    @in_float32
    def betainc(self, b: Operand, x: Operand) -> Self:
        """The share of the beta distribution of shapes `self` and b below x, with its gradient by x.

        Raises:
            GradientError: a shape requires a gradient.
        """
        first, second, points = self._floating()._join(b, x)
        shapes: list[Any] = [_detached_shape("betainc", shape) for shape in (first, second)]
        own, other, at = shapes[0].broadcast_tensors(shapes[1], points)
        at = at._anchored()
        found: Self = _beta_share(own, other, at)
        return linked(found, [at], lambda sources, grad: [grad.mul(_beta_density(own, other, sources[0]))])

    def _gamma_share(self, call: str, x: Operand, *, is_upper: bool) -> Self:
        shape, points = self._floating()._join(x)
        own, at = _detached_shape(call, shape).broadcast_tensors(points)
        at = at._anchored()
        found: Self = _gamma_share(own, at, is_upper=is_upper)
        sign = -1 if is_upper else 1
        return linked(found, [at], lambda sources, grad: [grad.mul(_gamma_density(own, sources[0])).mul(sign)])


def _detached_shape(call: str, shape: Any) -> Any:
    if shape.requires_grad:
        raise GradientError(f"{call}: there is no gradient by a shape. Give it as .detach().")
    return shape.detach()


@functools.cache
def _legendre() -> tuple[Any, Any]:
    """Nodes and weights on [0, 1]."""
    import numpy as np

    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return (nodes + 1) / 2, weights / 2


def _integral(end: Any, exponent: Callable[[Any], Any]) -> Any:
    """The integral of exp(-exponent(u)) from 0 to the end; arguments of the exponent have one more axis."""
    nodes, weights = (end._from_host(part, end._device).cast(end.dtype) for part in _legendre())
    u = end.unsqueeze(-1).mul(nodes)
    return exponent(u).neg().exp().mul(weights).sum(-1).mul(end)


def _stirling(a: Any) -> Any:
    """log(gamma(a)) without the parts of Stirling's formula, for a from FAR on."""
    inverse = a.reciprocal()
    return inverse.mul(inverse.square()._polynomial(STIRLING))


def _bend(d: Any) -> Any:
    """d - log(1 + d), exact for small d."""
    is_near = d.abs().lt(0.1)
    near = choose(is_near, d, d._filled(0))
    series = near.square().mul(near._polynomial(tuple((-1) ** k / k for k in range(17, 1, -1))))
    return choose(is_near, series, d.sub(choose(is_near, d._filled(1), d).log1p()))


def _gamma_front(a: Any, x: Any) -> Any:
    """x^a exp(-x) / gamma(a)."""
    is_small = a.lt(FAR)
    large = choose(is_small, a._filled(FAR), a)
    far = large.div(2 * math.pi).sqrt().mul(large.mul(_bend(x.sub(large).div(large))).add(_stirling(large)).neg().exp())
    return choose(is_small, a.mul(x.log()).sub(x).sub(a.lgamma()).exp(), far)


def _gamma_density(a: Any, x: Any) -> Any:
    at_zero = choose(a.lt(1), a._filled(math.inf), a.eq(1).cast(a.dtype))
    return choose(x.eq(0), at_zero, _gamma_front(a, x).div(x))


def _gamma_share(a: Any, x: Any, *, is_upper: bool) -> Any:
    one, front = a._filled(1), _gamma_front(a, x)
    is_short = a.lt(1)
    is_low = x.le(a).logical_or(is_short.logical_and(x.lt(1)))
    # below x: of a shape from 1 on, one step from a smaller one
    shape = choose(is_short, a.add(1), a)
    low = choose(is_low, x, shape.mul(0.5))
    end = low.add(_END).div(shape)
    for _ in range(_STEPS):
        over = shape.mul(end).add(low.mul(end.neg().expm1())).sub(_END)
        end = end.sub(over.div(shape.sub(low.mul(end.neg().exp()))))
    shapes, lows = shape.unsqueeze(-1), low.unsqueeze(-1)
    below = _integral(end, lambda u: shapes.mul(u).add(lows.mul(u.neg().expm1())))
    below = below.mul(choose(is_short, front.mul(x).div(choose(is_short, a, one)), front))
    below = choose(is_short, below.add(front.div(a)), below)
    # above x
    high = choose(is_low, shape.add(2), x)
    apart = high.sub(a)
    root = apart.square().add(high.mul(2 * _END)).sqrt()
    end = root.sub(apart).div(high).minimum(high.reciprocal().mul(2 * _END).log1p().add(1.26))
    for _ in range(_STEPS // 2):
        over = high.mul(end.expm1()).sub(a.mul(end)).sub(_END)
        end = end.sub(over.div(high.mul(end.exp()).sub(a)))
    shapes, highs = a.unsqueeze(-1), high.unsqueeze(-1)
    above = _integral(end, lambda u: highs.mul(u.expm1()).sub(shapes.mul(u))).mul(front)
    lower = choose(is_low, below, above.sub(1, reverse=True))
    upper = choose(is_low, below.sub(1, reverse=True), above)
    found = upper if is_upper else lower
    found = choose(x.eq(0), a._filled(float(is_upper)), found)
    found = choose(x.isinf(), a._filled(float(not is_upper)), found)
    is_bad = x.ge(0).logical_and(a.gt(0)).logical_not()  # also of nan
    return choose(is_bad, a._filled(math.nan), found)


def _beta_front(a: Any, b: Any, x: Any, y: Any) -> Any:
    """x^a y^b / beta(a, b) where y is 1 - x."""
    is_small = a.lt(FAR), b.lt(FAR)
    large = choose(is_small[0], a._filled(FAR), a), choose(is_small[1], b._filled(FAR), b)
    total = large[0].add(large[1])
    over = x.mul(large[1]).sub(y.mul(large[0]))
    bends = [large[0].mul(_bend(over.div(large[0]))), large[1].mul(_bend(over.neg().div(large[1])))]
    exponent = _stirling(total).sub(_stirling(large[0])).sub(_stirling(large[1])).sub(bends[0]).sub(bends[1])
    both_large = large[0].mul(large[1]).div(total.mul(2 * math.pi)).sqrt().mul(exponent.exp())
    logs = a.add(b).lgamma().sub(a.lgamma()).sub(b.lgamma())
    both_small = a.mul(x.log()).add(b.mul(y.log())).add(logs).exp()
    first = _mixed_front(choose(is_small[0], a, a._filled(1)), large[1], x, y)
    second = _mixed_front(choose(is_small[1], b, b._filled(1)), large[0], y, x)
    found = choose(is_small[1], choose(is_small[0], both_small, second), choose(is_small[0], first, both_large))
    return choose(x.eq(0).logical_or(y.eq(0)), found._filled(0), found)


def _mixed_front(a: Any, b: Any, x: Any, y: Any) -> Any:
    """The same of a small and a large shape."""
    total = a.add(b)
    exponent = a.mul(x.mul(total).log()).add(b.sub(0.5).mul(a.div(b).log1p())).sub(a).add(b.mul(y.log()))
    return exponent.add(_stirling(total)).sub(_stirling(b)).sub(a.lgamma()).exp()


def _beta_density(a: Any, b: Any, x: Any) -> Any:
    y = x.sub(1, reverse=True)
    inner = _beta_front(a, b, x, y).div(x.mul(y))
    near, other = choose(x.eq(0), a, b), choose(x.eq(0), b, a)
    at_end = choose(near.lt(1), near._filled(math.inf), choose(near.eq(1), other, near._filled(0)))
    return choose(x.eq(0).logical_or(y.eq(0)), at_end, inner)


def _beta_share(a: Any, b: Any, x: Any) -> Any:
    y = x.sub(1, reverse=True)
    is_other = x.mul(b).gt(y.mul(a))
    a, b, p, q = choose(is_other, b, a), choose(is_other, a, b), choose(is_other, y, x), choose(is_other, x, y)
    term = _beta_front(a, b, p, q).div(a)
    shape, before = a, term._filled(0)
    for _ in range(_BETA_SHAPE):
        is_more = shape.lt(_BETA_SHAPE)
        before = choose(is_more, before.add(term), before)
        term = choose(is_more, term.mul(p).mul(shape.add(b)).div(shape.add(1)), term)
        shape = choose(is_more, shape.add(1), shape)
    total = shape.add(b)
    end = total.mul(q.log()).sub(_END, reverse=True).div(shape)
    for _ in range(_STEPS):
        inner = p.mul(end.neg().expm1())
        over = shape.mul(end).add(total.mul(inner.log1p())).sub(_END)
        slope = shape.sub(total.mul(inner.add(p)).div(inner.add(1)))
        end = end.sub(over.div(slope))
    shapes, totals, parts = (t.unsqueeze(-1) for t in (shape, total, p))
    found = _integral(end, lambda u: shapes.mul(u).add(totals.mul(parts.mul(u.neg().expm1()).log1p())))
    found = found.mul(term).mul(shape).add(before)
    found = choose(p.eq(0), found._filled(0), found)
    found = choose(is_other, found.sub(1, reverse=True), found)
    is_good = x.ge(0).logical_and(x.le(1)).logical_and(a.gt(0)).logical_and(b.gt(0))
    return choose(is_good, found, found._filled(math.nan))
