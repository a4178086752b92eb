"""Distributions of real numbers and vectors: normal ones, uniform, exponential, Laplace, Cauchy and Gumbel."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from kernmill.ir import SettingError, ShapeError, show_shape

from ..methods.elementwise import where
from ..tensor import Tensor
from .base import Distribution, checked, parameters_of

__all__ = [
    "Cauchy", "Exponential", "Gumbel", "HalfNormal", "Laplace", "LogNormal", "MultivariateNormal", "Normal", "Uniform",
]  # fmt: skip

_EULER = 0.57721566490153286


class Located(Distribution):
    """A distribution with a location and a scale."""

    def __init__(self, loc: Any, scale: Any) -> None:
        self.loc, self.scale = parameters_of(type(self).__name__, loc=loc, scale=scale, positive=["scale"])
        self.batch_shape = self.loc.shape

    def _standard(self, value: Tensor) -> Tensor:
        return (value - self.loc) / self.scale


class Normal(Located):
    """The normal distribution with a mean and a standard deviation."""

    @property
    def mean(self) -> Tensor:
        """The location."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """The square of the scale."""
        return self.scale.square()

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density."""
        return self._standard(value).square() * -0.5 - self.scale.log() - 0.5 * math.log(2 * math.pi)

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of smaller values."""
        return (1 + (self._standard(value) / math.sqrt(2)).erf()) * 0.5

    def entropy(self) -> Tensor:
        """The mean of -log_prob."""
        return self.scale.log() + 0.5 * math.log(2 * math.pi * math.e)

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Values of a shape."""
        return self.loc + self.scale * normal_like(self.loc, shape)


class LogNormal(Normal):
    """The exponential of a normal distribution, whose mean and standard deviation are given."""

    @property
    def mean(self) -> Tensor:
        """The mean of the values themselves."""
        return (self.loc + self.scale.square() * 0.5).exp()

    @property
    def variance(self) -> Tensor:
        """The variance of the values themselves."""
        square = self.scale.square()
        return square.expm1() * (self.loc * 2 + square).exp()

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density."""
        return super().log_prob(value.log()) - value.log()

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of smaller values."""
        return super().cdf(value.log())

    def entropy(self) -> Tensor:
        """The mean of -log_prob."""
        return super().entropy() + self.loc

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Values of a shape."""
        return super().draw(shape).exp()


class HalfNormal(Distribution):
    """The size of a normal value with mean 0 and standard deviation `scale`."""

    def __init__(self, scale: Any) -> None:
        (self.scale,) = parameters_of("HalfNormal", scale=scale, positive=["scale"])
        self.batch_shape = self.scale.shape

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.scale * math.sqrt(2 / math.pi)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.scale.square() * (1 - 2 / math.pi)

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density; -inf below 0."""
        density = (value / self.scale).square() * -0.5 - self.scale.log() + 0.5 * math.log(2 / math.pi)
        return where(value >= 0, density, -math.inf)

    def entropy(self) -> Tensor:
        """The mean of -log_prob."""
        return self.scale.log() + 0.5 * math.log(math.pi * math.e / 2)

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Values of a shape."""
        return (self.scale * normal_like(self.scale, shape)).abs()


class Laplace(Located):
    """The Laplace distribution: exponential on both sides of the location."""

    @property
    def mean(self) -> Tensor:
        """The location."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """Twice the square of the scale."""
        return self.scale.square() * 2

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density."""
        return -self._standard(value).abs() - (self.scale * 2).log()

    def entropy(self) -> Tensor:
        """The mean of -log_prob."""
        return (self.scale * 2).log() + 1

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Values of a shape."""
        side = uniform_like(self.loc, shape) - 0.5
        return self.loc - self.scale * side.sign() * (1 - side.abs() * 2).maximum(_tiny(self.loc)).log()


class Cauchy(Located):
    """The Cauchy distribution, which has no mean."""

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density."""
        return -(self._standard(value).square() + 1).log() - self.scale.log() - math.log(math.pi)

    def entropy(self) -> Tensor:
        """The mean of -log_prob."""
        return self.scale.log() + math.log(4 * math.pi)

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Values of a shape."""
        return self.loc + self.scale * ((uniform_like(self.loc, shape) - 0.5) * math.pi).tan()


class Gumbel(Located):
    """The Gumbel distribution, of the largest of many values."""

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.loc + self.scale * _EULER

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.scale.square() * (math.pi**2 / 6)

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density."""
        y = -self._standard(value)
        return y - y.exp() - self.scale.log()

    def entropy(self) -> Tensor:
        """The mean of -log_prob."""
        return self.scale.log() + (1 + _EULER)

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Values of a shape."""
        tiny = _tiny(self.loc)
        return self.loc - self.scale * (-uniform_like(self.loc, shape).maximum(tiny).log()).maximum(tiny).log()


class Exponential(Distribution):
    """The time until an event that happens `rate` times in a unit of time."""

    def __init__(self, rate: Any) -> None:
        (self.rate,) = parameters_of("Exponential", rate=rate, positive=["rate"])
        self.batch_shape = self.rate.shape

    @property
    def mean(self) -> Tensor:
        """1 / rate."""
        return 1 / self.rate

    @property
    def variance(self) -> Tensor:
        """1 / rate squared."""
        return 1 / self.rate.square()

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density; -inf below 0."""
        return where(value >= 0, self.rate.log() - self.rate * value, -math.inf)

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of smaller values."""
        return -(-self.rate * value.maximum(0)).expm1()

    def entropy(self) -> Tensor:
        """The mean of -log_prob."""
        return 1 - self.rate.log()

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Values of a shape."""
        return -(-uniform_like(self.rate, shape)).log1p() / self.rate


class Uniform(Distribution):
    """Equal density from `low` to below `high`.

    Raises:
        SettingError: both are numbers, and `high` is not above `low`. Of tensors it fails when they are computed.
    """

    def __init__(self, low: Any, high: Any) -> None:
        if isinstance(low, Real) and isinstance(high, Real) and not low < high:
            raise SettingError(f"Uniform: low={low!r}, high={high!r}: high must be above low.")
        self.low, self.high = parameters_of("Uniform", low=low, high=high)
        if not (isinstance(low, Real) and isinstance(high, Real)):
            self.high = checked(self.high, self.low < self.high, "Uniform: a value of high is not above low, or nan.")
        self.batch_shape = self.low.shape

    @property
    def mean(self) -> Tensor:
        """The middle."""
        return (self.low + self.high) * 0.5

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return (self.high - self.low).square() / 12

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density; -inf outside."""
        inside = (value >= self.low) & (value < self.high)
        return where(inside, -(self.high - self.low).log(), -math.inf)

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of smaller values."""
        return ((value - self.low) / (self.high - self.low)).clamp(0, 1)

    def entropy(self) -> Tensor:
        """The mean of -log_prob."""
        return (self.high - self.low).log()

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Values of a shape."""
        return self.low + (self.high - self.low) * uniform_like(self.low, shape)


class MultivariateNormal(Distribution):
    """A normal vector with a mean and a covariance matrix, or the lower triangle `scale_tril` of its Cholesky factor.

    Raises:
        ShapeError: sizes that do not fit, or not one of both matrices.
    """

    def __init__(self, loc: Tensor, covariance_matrix: Tensor | None = None, *,
                 scale_tril: Tensor | None = None) -> None:  # fmt: skip
        given = covariance_matrix if scale_tril is None else scale_tril
        if given is None or (covariance_matrix is not None and scale_tril is not None):
            raise ShapeError("MultivariateNormal: give either covariance_matrix or scale_tril.")
        size = loc.uop.shape[-1:]
        if given.ndim < 2 or given.uop.shape[-2:] != (*size, *size):
            raise ShapeError(
                f"MultivariateNormal: a mean of shape {show_shape(loc.uop.shape)} and a matrix of shape "
                f"{show_shape(given.uop.shape)}. The last two axes of the matrix must have the size of the mean's last."
            )
        self.loc = loc if loc.dtype.is_float else loc.float()
        self.scale_tril = given.cholesky() if scale_tril is None else given
        lead = (self.loc.unsqueeze(-1) + self.scale_tril[..., :1]).shape[:-2]
        self.batch_shape, self.event_shape = lead, loc.shape[-1:]

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.loc

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance matrix."""
        return self.scale_tril @ self.scale_tril.mT

    def _log_size(self) -> Tensor:
        """Half the logarithm of the determinant of the covariance."""
        return self.scale_tril.diagonal(0, -2, -1).log().sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density."""
        distance = (value - self.loc).unsqueeze(-1)
        lead = distance.shape[:-2]
        factor = self.scale_tril.expand((*lead, *self.scale_tril.shape[-2:]))
        whitened = factor.solve_triangular(distance, upper=False).squeeze(-1)
        return whitened.square().sum(-1) * -0.5 - self._log_size() - 0.5 * self.event_shape[0] * math.log(2 * math.pi)

    def entropy(self) -> Tensor:
        """The mean of -log_prob."""
        return self._log_size() + 0.5 * self.event_shape[0] * math.log(2 * math.pi * math.e)

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Values of a shape."""
        return self.loc + (self.scale_tril @ normal_like(self.loc, shape).unsqueeze(-1)).squeeze(-1)


def normal_like(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    return Tensor.randn(*shape, dtype=like.dtype, device=like.device)


def uniform_like(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    return Tensor.rand(*shape, dtype=like.dtype, device=like.device)


def _tiny(like: Tensor) -> float:
    """A number above 0 whose logarithm is finite."""
    return 1e-30 if like.dtype.bits >= 32 else 1e-7
