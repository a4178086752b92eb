"""`kl_divergence`: the mean of log p(x) - log q(x) over values of p, for pairs that have a formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from kernmill.ir import SettingError

from ..methods.elementwise import where
from ..tensor import Tensor
from .base import Distribution
from .continuous import Exponential, Laplace, MultivariateNormal, Normal, Uniform
from .discrete import Bernoulli, Categorical, Geometric
from .gamma_family import Beta, Dirichlet, Gamma, Poisson

__all__ = ["kl_divergence"]


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """The Kullback-Leibler divergence of q from p. Shapes: those of the batches, broadcast.

    Raises:
        SettingError: the pair has no formula here.
    """
    formula = _FORMULAS.get((type(p), type(q)))
    if formula is None:
        raise SettingError(
            f"kl_divergence: no formula for {type(p).__name__} and {type(q).__name__}. Estimate it: "
            "(p.log_prob(x) - q.log_prob(x)).mean(0) with x = p.sample((1000,))."
        )
    return formula(p, q)


def _normal(p: Normal, q: Normal) -> Tensor:
    ratio = (p.scale / q.scale).square()
    return (ratio + ((p.loc - q.loc) / q.scale).square() - 1 - ratio.log()) * 0.5


def _uniform(p: Uniform, q: Uniform) -> Tensor:
    inside = (q.low <= p.low) & (p.high <= q.high)
    return where(inside, ((q.high - q.low) / (p.high - p.low)).log(), math.inf)


def _exponential(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - 1 - ratio.log()


def _laplace(p: Laplace, q: Laplace) -> Tensor:
    ratio, distance = p.scale / q.scale, (p.loc - q.loc).abs()
    return -ratio.log() + distance / q.scale + ratio * (-distance / p.scale).exp() - 1


def _bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    yes = p.probs * (p.logits.logsigmoid() - q.logits.logsigmoid())
    return yes + (1 - p.probs) * ((-p.logits).logsigmoid() - (-q.logits).logsigmoid())


def _categorical(p: Categorical, q: Categorical) -> Tensor:
    return where(p.probs > 0, p.probs * (p.logits - q.logits), 0).sum(-1)


def _geometric(p: Geometric, q: Geometric) -> Tensor:
    return p.mean * ((-p.probs).log1p() - (-q.probs).log1p()) + (p.probs / q.probs).log()


def _multivariate_normal(p: MultivariateNormal, q: MultivariateNormal) -> Tensor:
    mixed = q.scale_tril.solve_triangular(p.scale_tril, upper=False)
    distance = q.scale_tril.solve_triangular((p.loc - q.loc).unsqueeze(-1), upper=False).squeeze(-1)
    trace = mixed.square().sum((-2, -1)) + distance.square().sum(-1) - p.event_shape[0]
    return trace * 0.5 + q._log_size() - p._log_size()


def _gamma(p: Gamma, q: Gamma) -> Tensor:
    a, b = p.concentration, q.concentration
    rates = b * (p.rate / q.rate).log() + a * (q.rate / p.rate - 1)
    return rates + b.lgamma() - a.lgamma() + (a - b) * a.digamma()


def _beta(p: Beta, q: Beta) -> Tensor:
    one, zero = p.concentration1, p.concentration0
    moved = (one - q.concentration1) * one.digamma() + (zero - q.concentration0) * zero.digamma()
    total = one + zero
    return q._log_size() - p._log_size() + moved - (total - q.concentration1 - q.concentration0) * total.digamma()


def _dirichlet(p: Dirichlet, q: Dirichlet) -> Tensor:
    a, b = p.concentration, q.concentration
    slopes = a.digamma() - a.sum(-1, keepdim=True).digamma()
    return q._log_size() - p._log_size() + ((a - b) * slopes).sum(-1)


def _poisson(p: Poisson, q: Poisson) -> Tensor:
    return p.rate * (p.rate / q.rate).log() - p.rate + q.rate


_FORMULAS: dict[tuple[type, type], Callable[[Any, Any], Tensor]] = {
    (Normal, Normal): _normal,
    (Uniform, Uniform): _uniform,
    (Exponential, Exponential): _exponential,
    (Laplace, Laplace): _laplace,
    (Bernoulli, Bernoulli): _bernoulli,
    (Categorical, Categorical): _categorical,
    (Geometric, Geometric): _geometric,
    (Gamma, Gamma): _gamma,
    (Beta, Beta): _beta,
    (Dirichlet, Dirichlet): _dirichlet,
    (Poisson, Poisson): _poisson,
    (MultivariateNormal, MultivariateNormal): _multivariate_normal,
}
