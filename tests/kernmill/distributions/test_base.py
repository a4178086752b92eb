"""What all distributions share: parameters that broadcast, shapes of samples, and their text."""

from __future__ import annotations

import numpy as np

from kernmill import Tensor, dtypes
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
