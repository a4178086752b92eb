"""What all distributions share: parameters that broadcast, shapes of samples, and their text."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from kernmill import IndexRangeError, SettingError, Tensor, distributions, dtypes
from kernmill.distributions import Normal
from kernmill.distributions.base import Distribution, parameters_of


def test_parameters_broadcast_as_floats() -> None:
    a, b = parameters_of("x", a=Tensor([1, 2]), b=Tensor(np.ones((3, 1))))
    assert (a.shape, b.shape, a.dtype, b.dtype) == ((3, 2), (3, 2), dtypes.float32, dtypes.float64)


def test_shapes() -> None:
    own = Normal(Tensor([0.0, 1.0]), 1.0)
    assert own.sample().shape == (2,)
    assert own.sample((3, 4)).shape == (3, 4, 2)
    assert own.rsample(3).shape == (3, 2)
    assert repr(own) == "Normal(batch (2,), event ())"
    assert isinstance(own, Distribution)


BAD: dict[str, Callable[[], distributions.Distribution]] = {
    "Normal: a value of scale is not positive": lambda: distributions.Normal(Tensor([0.0, 1.0]), Tensor([1.0, -1.0])),
    "Gamma: a value of rate is not positive": lambda: distributions.Gamma(1.0, Tensor([0.0])),
    "Poisson: a value of rate is not positive": lambda: distributions.Poisson(Tensor([math.nan])),
    "Dirichlet: a value of concentration is not": lambda: distributions.Dirichlet(Tensor([1.0, -1.0])),
    "Bernoulli: a value of probs is outside 0 to 1": lambda: distributions.Bernoulli(Tensor([0.5, 2.0])),
    "Geometric: a value of probs is outside 0 to 1": lambda: distributions.Geometric(Tensor([1.5])),
    "Categorical: probs are below 0, nan, or all 0": lambda: distributions.Categorical(Tensor([[1.0, 1], [-1, 2]])),
    "Uniform: a value of high is not above low": lambda: distributions.Uniform(Tensor([2.0, 0.0]), 1.0),
}


@pytest.mark.parametrize("message", BAD)
def test_parameters_out_of_range_fail_when_they_are_computed(message: str) -> None:
    """Samples were drawn from what is no distribution, without an error."""
    with pytest.raises(IndexRangeError, match=message):
        BAD[message]().sample((3,)).numpy()


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(SettingError, match=r"^Bernoulli: probs=2. Give a number from 0 to 1"):
        distributions.Bernoulli(2)
    with pytest.raises(SettingError, match=r"^Uniform: low=2.0, high=1.0: high must be above low"):
        distributions.Uniform(2.0, 1.0)
