"""Distributions of integers: Bernoulli, categorical and geometric."""

from __future__ import annotations

import math
from typing import Any

from kernmill.ir import SettingError, ShapeError, show_shape

from ..methods.elementwise import where
from ..tensor import Tensor
from .base import Distribution, checked, parameters_of

__all__ = ["Bernoulli", "Categorical", "Geometric"]


def _one_of(name: str, probs: Any, logits: Any) -> None:
    if (probs is None) == (logits is None):
        raise SettingError(f"{name}: give either probs or logits.")


class Bernoulli(Distribution):
    """1 with probability `probs`, else 0; `logits` is log(probs / (1 - probs))."""

    has_rsample = False

    def __init__(self, probs: Any = None, logits: Any = None) -> None:
        _one_of("Bernoulli", probs, logits)
        if logits is None:
            (self.probs,) = parameters_of("Bernoulli", probs=probs, probable=["probs"])
            self.logits = (self.probs / (1 - self.probs)).log()
        else:
            (self.logits,) = parameters_of("Bernoulli", logits=logits)
            self.probs = self.logits.sigmoid()
        self.batch_shape = self.probs.shape

    @property
    def mean(self) -> Tensor:
        """The probability of 1."""
        return self.probs

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.probs * (1 - self.probs)

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability of 0 or 1."""
        return self.logits.logsigmoid() - self.logits * (1 - value.cast(self.logits.dtype))

    def entropy(self) -> Tensor:
        """The mean of -log_prob."""
        return -(self.logits.logsigmoid() - self.logits * (1 - self.probs))

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Values of a shape."""
        drawn = Tensor.rand(*shape, dtype=self.probs.dtype, device=self.probs.device)
        return (drawn < self.probs).cast(self.probs.dtype)


class Categorical(Distribution):
    """One of n classes, 0 to n - 1; `probs` or `logits` along the last axis, which need not be normalized."""

    has_rsample = False

    def __init__(self, probs: Tensor | None = None, logits: Tensor | None = None) -> None:
        _one_of("Categorical", probs, logits)
        given = probs if logits is None else logits
        if not isinstance(given, Tensor) or not given.ndim:
            raise ShapeError("Categorical: probs or logits must be a tensor with an axis of classes.")
        raw = given if given.dtype.is_float else given.float()
        if logits is None:
            is_right = (raw >= 0).all(-1, keepdim=True) & (raw.sum(-1, keepdim=True) > 0)
            raw = checked(raw, is_right, "Categorical: probs are below 0, nan, or all 0. Give weights of the classes.")
        self.logits = raw.log_softmax(-1) if probs is None else (raw / raw.sum(-1, keepdim=True)).log()
        self.probs = self.logits.exp()
        self.batch_shape = given.shape[:-1]

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability of a class. Shapes: (...) of ints -> (...).

        Raises:
            ShapeError: the shape does not fit the batch.
        """
        lead = (value.float() + self.logits[..., 0]).shape
        if value.ndim > len(lead):
            raise ShapeError(f"Categorical.log_prob: a value of shape {show_shape(value.uop.shape)} does not fit.")
        logits = self.logits.expand((*lead, self.logits.shape[-1]))
        return logits.gather(-1, value.expand(lead).unsqueeze(-1).cast("int64")).squeeze(-1)

    def entropy(self) -> Tensor:
        """The mean of -log_prob."""
        return -where(self.probs > 0, self.probs * self.logits, 0).sum(-1)

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Values of a shape."""
        drawn = Tensor.rand(*shape, self.logits.shape[-1], dtype=self.logits.dtype, device=self.logits.device)
        noise = -(-drawn.maximum(1e-30 if drawn.dtype.bits >= 32 else 1e-7).log()).log()
        return (self.logits + noise).argmax(-1)


class Geometric(Distribution):
    """The number of failures before the first success, which has probability `probs`."""

    has_rsample = False

    def __init__(self, probs: Any) -> None:
        (self.probs,) = parameters_of("Geometric", probs=probs, positive=["probs"], probable=["probs"])
        self.batch_shape = self.probs.shape

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return 1 / self.probs - 1

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return (1 / self.probs - 1) / self.probs

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability."""
        count = value.cast(self.probs.dtype)
        return where(count >= 0, count * (-self.probs).log1p() + self.probs.log(), -math.inf)

    def entropy(self) -> Tensor:
        """The mean of -log_prob."""
        p = self.probs
        return -((1 - p) * (-p).log1p() + p * p.log()) / p

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Values of a shape."""
        drawn = Tensor.rand(*shape, dtype=self.probs.dtype, device=self.probs.device)
        return ((-drawn).log1p() / (-self.probs).log1p()).floor()
