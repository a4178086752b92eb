"""class Distribution: parameters of one shape, and what every distribution has."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from numbers import Real
from typing import Any

from kernmill.ir import GradientError, SettingError, ShapeError, broadcast_shapes, show_shape, static

from ..arguments import with_sentences_at_init
from ..lazy import no_grad
from ..tensor import Tensor

__all__ = ["Distribution", "checked", "parameters_of"]


class Distribution:
    """The base of distributions. `batch_shape` is that of the parameters, `event_shape` that of one value.

    A parameter is a number or a tensor; parameters broadcast. Under `jit` samples are new in each call.
    """

    has_rsample = True  # a sample is a differentiable function of the parameters
    batch_shape: tuple[int, ...] = ()
    event_shape: tuple[int, ...] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        with_sentences_at_init(cls)

    def sample(self, sample_shape: int | Sequence[int] = ()) -> Tensor:
        """Draw values, without gradients. Shapes: sample_shape + batch_shape + event_shape."""
        with no_grad():
            return self.draw(self._shape(sample_shape)).detach()

    def rsample(self, sample_shape: int | Sequence[int] = ()) -> Tensor:
        """Draw values with gradients for the parameters. Shapes: as `sample`.

        Raises:
            GradientError: the distribution has no such samples.
        """
        if not self.has_rsample:
            raise GradientError(
                f"{type(self).__name__}.rsample: samples have no gradient for the parameters. Use "
                "sample(), and log_prob() of the sample for the gradient."
            )
        return self.draw(self._shape(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density, or of the probability. Shapes: (..., *event_shape) -> (...)."""
        raise NotImplementedError(f"{type(self).__name__} has no log_prob().")

    def entropy(self) -> Tensor:
        """The mean of -log_prob. Shapes: batch_shape."""
        raise NotImplementedError(f"{type(self).__name__} has no entropy().")

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Values of a shape, which `sample` and `rsample` make."""
        raise NotImplementedError(f"{type(self).__name__} has no sample().")

    def _shape(self, sample_shape: int | Sequence[int]) -> tuple[int, ...]:
        given = (sample_shape,) if isinstance(sample_shape, int) else tuple(sample_shape)
        if not all(isinstance(size, int) and size >= 0 for size in given):
            raise ShapeError(f"{type(self).__name__}.sample: sample_shape={sample_shape!r}. Give a tuple of sizes.")
        return (*given, *self.batch_shape, *self.event_shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch {show_shape(self.batch_shape)}, event {show_shape(self.event_shape)})"


def parameters_of(name: str, *, positive: Sequence[str] = (), probable: Sequence[str] = (),
                  **given: Any) -> list[Tensor]:  # fmt: skip
    """The parameters as float tensors of one shape. Tensors with values out of range fail when they are computed.

    Raises:
        SettingError: a number that must be positive is not, or one of `probable` is not from 0 to 1.
    """
    for word in positive:
        if isinstance(given[word], Real) and not given[word] > 0:
            raise SettingError(f"{name}: {word}={given[word]!r}. Give a positive number, or a tensor of them.")
    for word in probable:
        if isinstance(given[word], Real) and not 0 <= given[word] <= 1:
            raise SettingError(f"{name}: {word}={given[word]!r}. Give a number from 0 to 1, or a tensor of them.")
    tensors = [value if isinstance(value, Tensor) else Tensor(value) for value in given.values()]
    tensors = [t if t.dtype.is_float else t.float() for t in tensors]
    for index, (word, value) in enumerate(given.items()):
        own = tensors[index]
        if isinstance(value, Real):
            continue
        if word in positive:
            own = checked(own, own > 0, f"{name}: a value of {word} is not positive, or nan.")
        if word in probable:
            own = checked(own, (own >= 0) & (own <= 1), f"{name}: a value of {word} is outside 0 to 1, or nan.")
        tensors[index] = own
    shape = static(broadcast_shapes(name, *[t.uop.shape for t in tensors]))
    return [t.expand(shape) if t.uop.shape != shape else t for t in tensors]


def checked(t: Tensor, is_right: Tensor, message: str) -> Tensor:
    """A parameter that fails when it is computed, unless all its values are right."""
    return t._checked(is_right.detach().logical_not(), message) if prod(t.shape) else t
