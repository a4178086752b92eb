"""Distributions with the gamma function: Gamma, Beta, Dirichlet, Poisson and Student's t."""

from __future__ import annotations

import math
from typing import Any

from kernmill.ir import ShapeError

from ..methods.elementwise import where
from ..tensor import Tensor
from .base import Distribution, parameters_of
from .continuous import Located

__all__ = ["Beta", "Dirichlet", "Gamma", "Poisson", "StudentT"]

_TRIES = 16  # of a gamma value: one is refused with a probability below 0.05, so all are below 1e-20
_MOST_EVENTS = 64  # a Poisson value is counted up to there, and beyond it is a rounded normal one


class Gamma(Distribution):
    """The gamma distribution with a shape (`concentration`) and a rate."""

    has_rsample = False

    def __init__(self, concentration: Any, rate: Any) -> None:
        given = {"concentration": concentration, "rate": rate}
        self.concentration, self.rate = parameters_of("Gamma", **given, positive=[*given])
        self.batch_shape = self.rate.shape

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.concentration / self.rate

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.concentration / self.rate.square()

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density."""
        a, b = self.concentration, self.rate
        return a * b.log() + (a - 1) * value.log() - b * value - a.lgamma()

    def entropy(self) -> Tensor:
        """The mean of -log_prob."""
        a = self.concentration
        return a - self.rate.log() + a.lgamma() + (1 - a) * a.digamma()

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Values of a shape."""
        return standard_gamma(self.concentration, shape) / self.rate


class Beta(Distribution):
    """The beta distribution on (0, 1)."""

    has_rsample = False

    def __init__(self, concentration1: Any, concentration0: Any) -> None:
        given = {"concentration1": concentration1, "concentration0": concentration0}
        self.concentration1, self.concentration0 = parameters_of("Beta", **given, positive=[*given])
        self.batch_shape = self.concentration1.shape

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        total = self.concentration1 + self.concentration0
        return self.concentration1 * self.concentration0 / (total.square() * (total + 1))

    def _log_size(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        return a.lgamma() + b.lgamma() - (a + b).lgamma()

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density."""
        a, b = self.concentration1, self.concentration0
        return (a - 1) * value.log() + (b - 1) * (-value).log1p() - self._log_size()

    def entropy(self) -> Tensor:
        """The mean of -log_prob."""
        a, b = self.concentration1, self.concentration0
        total = (a + b - 2) * (a + b).digamma()
        return self._log_size() - (a - 1) * a.digamma() - (b - 1) * b.digamma() + total

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Values of a shape."""
        first, second = (standard_gamma(c, shape) for c in (self.concentration1, self.concentration0))
        return first / (first + second)


class Dirichlet(Distribution):
    """Probabilities of n classes; `concentration` has them along its last axis.

    Raises:
        ShapeError: a concentration without an axis.
    """

    has_rsample = False

    def __init__(self, concentration: Tensor) -> None:
        if not isinstance(concentration, Tensor) or not concentration.ndim:
            raise ShapeError("Dirichlet: concentration must be a tensor with an axis of classes.")
        (self.concentration,) = parameters_of("Dirichlet", concentration=concentration, positive=["concentration"])
        self.batch_shape, self.event_shape = concentration.shape[:-1], concentration.shape[-1:]

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.concentration / self.concentration.sum(-1, keepdim=True)

    def _log_size(self) -> Tensor:
        return self.concentration.lgamma().sum(-1) - self.concentration.sum(-1).lgamma()

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density."""
        return ((self.concentration - 1) * value.log()).sum(-1) - self._log_size()

    def entropy(self) -> Tensor:
        """The mean of -log_prob."""
        a = self.concentration
        total = a.sum(-1)
        return self._log_size() + (total - a.shape[-1]) * total.digamma() - ((a - 1) * a.digamma()).sum(-1)

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Values of a shape."""
        drawn = standard_gamma(self.concentration, shape)
        return drawn / drawn.sum(-1, keepdim=True)


class Poisson(Distribution):
    """The number of events in a unit of time in which `rate` happen on average.

    Samples for rates above 32 are rounded normal values.
    """

    has_rsample = False

    def __init__(self, rate: Any) -> None:
        (self.rate,) = parameters_of("Poisson", rate=rate, positive=["rate"])
        self.batch_shape = self.rate.shape

    @property
    def mean(self) -> Tensor:
        """The rate."""
        return self.rate

    @property
    def variance(self) -> Tensor:
        """The rate."""
        return self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability."""
        count = value.cast(self.rate.dtype)
        return count * self.rate.log() - self.rate - (count + 1).lgamma()

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Values of a shape."""
        rate = self.rate
        waits = Tensor.rand(*shape, _MOST_EVENTS, dtype=rate.dtype, device=rate.device)
        times = -(-waits).log1p().cumsum(-1)  # of events that happen once in a unit of time
        counted = (times < rate.unsqueeze(-1)).sum(-1).cast(rate.dtype)
        normal = Tensor.randn(*shape, dtype=rate.dtype, device=rate.device) * rate.sqrt() + rate
        return where(rate.expand(shape) <= _MOST_EVENTS / 2, counted, normal.round().maximum(0))


class StudentT(Located):
    """Student's t distribution with `df` degrees of freedom."""

    has_rsample = False

    def __init__(self, df: Any, loc: Any = 0.0, scale: Any = 1.0) -> None:
        given = {"df": df, "loc": loc, "scale": scale}
        self.df, self.loc, self.scale = parameters_of("StudentT", **given, positive=["df", "scale"])
        self.batch_shape = self.loc.shape

    def _log_size(self) -> Tensor:
        half = self.df * 0.5
        return self.scale.log() + (self.df * math.pi).log() * 0.5 + half.lgamma() - (half + 0.5).lgamma()

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density."""
        return (self._standard(value).square() / self.df).log1p() * (self.df + 1) * -0.5 - self._log_size()

    def entropy(self) -> Tensor:
        """The mean of -log_prob."""
        half = self.df * 0.5
        return (half + 0.5) * ((half + 0.5).digamma() - half.digamma()) + self._log_size()

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Values of a shape."""
        drawn = Tensor.randn(*shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + self.scale * drawn * (self.df * 0.5 / standard_gamma(self.df * 0.5, shape)).sqrt()


def standard_gamma(concentration: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Values of the gamma distribution with rate 1: of several tries the first that is not refused.

    Source: Marsaglia and Tsang, A Simple Method for Generating Gamma Variables, 2000.
    """
    options: Any = {"dtype": concentration.dtype, "device": concentration.device}
    is_small = concentration < 1  # then of concentration + 1, times a power of a uniform value
    d = where(is_small, concentration + 1, concentration) - 1 / 3
    tries = (*shape, _TRIES)
    x = Tensor.randn(*tries, **options)
    wide = d.unsqueeze(-1)
    v = (1 + x / (wide * 9).sqrt()) ** 3
    bound = x.square() * 0.5 + wide * (1 - v + v.maximum(1e-30).log())
    is_taken = (v > 0) & (Tensor.rand(*tries, **options).maximum(1e-30).log() < bound)
    first = is_taken.cast("int32").argmax(-1, keepdim=True)
    found = d * v.gather(-1, first).squeeze(-1)
    power = (Tensor.rand(*shape, **options).maximum(1e-30).log() / concentration).exp()
    return where(is_small, found * power, found)
