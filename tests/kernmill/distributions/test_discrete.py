"""Distributions of integers, by their formulas and samples."""

from __future__ import annotations

import numpy as np
import pytest

from kernmill import GradientError, SettingError, ShapeError, Tensor
from kernmill.distributions import Bernoulli, Categorical, Geometric
from kernmill.functional import grad
from tests.kernmill.against import only_on

on_device = only_on("LLVM")
P = np.array([0.1, 0.6, 0.3])


def test_bernoulli() -> None:
    for own in (Bernoulli(Tensor(P)), Bernoulli(logits=Tensor(np.log(P / (1 - P))))):
        np.testing.assert_allclose(own.log_prob(Tensor([1, 0, 1])).numpy(), np.log([0.1, 0.4, 0.3]), rtol=1e-6)
        np.testing.assert_allclose(own.entropy().numpy(), -P * np.log(P) - (1 - P) * np.log(1 - P), rtol=1e-6)
        np.testing.assert_allclose(own.sample((20_000,)).numpy().mean(0), P, atol=0.02)
    slope = grad(lambda p: Bernoulli(p).log_prob(Tensor(1)))(Tensor(0.25)).item()
    assert slope == pytest.approx(4, rel=1e-5)


def test_categorical() -> None:
    for own in (Categorical(Tensor(P * 2)), Categorical(logits=Tensor(np.log(P) + 3))):
        np.testing.assert_allclose(own.log_prob(Tensor([[1, 0], [2, 2]])).numpy(), np.log([[0.6, 0.1], [0.3, 0.3]]))
        np.testing.assert_allclose(own.entropy().item(), -(P * np.log(P)).sum(), rtol=1e-6)
        counts = np.bincount(own.sample((20_000,)).numpy(), minlength=3) / 20_000
        np.testing.assert_allclose(counts, P, atol=0.02)
    batch = Categorical(Tensor(np.stack([P, P[::-1]])))
    assert (batch.batch_shape, batch.sample((5,)).shape) == ((2,), (5, 2))
    np.testing.assert_allclose(batch.log_prob(Tensor([0, 0])).numpy(), np.log([0.1, 0.3]))
    assert Categorical(Tensor([0.0, 1.0])).entropy().item() == 0


def test_geometric() -> None:
    own = Geometric(Tensor([0.2, 0.5]))
    count = np.arange(400)[:, None]
    logs = own.log_prob(Tensor(count)).numpy()
    np.testing.assert_allclose(np.exp(logs).sum(0), 1, rtol=1e-5)
    np.testing.assert_allclose(-(np.exp(logs) * logs).sum(0), own.entropy().numpy(), rtol=1e-4)
    np.testing.assert_allclose(own.sample((20_000,)).numpy().mean(0), own.mean.numpy(), rtol=0.05)


def test_mistakes() -> None:
    with pytest.raises(SettingError, match=r"^Bernoulli: give either probs or logits."):
        Bernoulli()
    with pytest.raises(ShapeError, match=r"^Categorical: probs or logits must be a tensor with an axis of classes."):
        Categorical(Tensor(0.5))
    with pytest.raises(GradientError, match=r"^Bernoulli.rsample: samples have no gradient"):
        Bernoulli(0.5).rsample()
