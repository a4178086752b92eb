"""Distributions of real numbers: PyTorch's values where it is installed, integrals and samples without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernmill import SettingError, ShapeError, Tensor, distributions, jit
from kernmill.functional import grad
from tests.kernmill.against import only_on

on_device = only_on("LLVM")
OURS: Any = distributions
CASES: dict[str, tuple[Any, ...]] = {
    "Normal": (0.5, 2.0),
    "LogNormal": (0.2, 0.5),
    "HalfNormal": (1.5,),
    "Laplace": (0.5, 2.0),
    "Cauchy": (0.5, 2.0),
    "Gumbel": (0.5, 2.0),
    "Exponential": (1.5,),
    "Uniform": (-1.0, 2.5),
}
GRID = np.linspace(-60, 60, 400_001)


def made(name: str, dtype: str = "float64") -> Any:
    return getattr(OURS, name)(*[Tensor(np.array(p), dtype) for p in CASES[name]])


@pytest.mark.parametrize("name", CASES)
def test_values_are_pytorchs(name: str) -> None:
    torch: Any = pytest.importorskip("torch")
    own = made(name)
    other = getattr(torch.distributions, name)(*[torch.tensor(p, dtype=torch.float64) for p in CASES[name]])
    x = np.array([0.1, 0.7, 1.9])
    np.testing.assert_allclose(own.log_prob(Tensor(x)).numpy(), other.log_prob(torch.tensor(x)).numpy(), rtol=1e-6)
    np.testing.assert_allclose(own.entropy().numpy(), other.entropy().numpy(), rtol=1e-6)
    if hasattr(own, "cdf"):
        np.testing.assert_allclose(own.cdf(Tensor(x)).numpy(), other.cdf(torch.tensor(x)).numpy(), rtol=1e-5)
    if hasattr(own, "mean"):
        np.testing.assert_allclose(own.mean.numpy(), other.mean.numpy(), rtol=1e-6)
        np.testing.assert_allclose(own.variance.numpy(), other.variance.numpy(), rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in CASES if name != "Cauchy"])
def test_densities_have_integral_one_and_the_entropy(name: str) -> None:
    own = made(name)
    with np.errstate(all="ignore"):
        logs = own.log_prob(Tensor(GRID)).numpy()
        logs = np.where(np.isnan(logs), -np.inf, logs)
        density = np.exp(logs)
        step = GRID[1] - GRID[0]
        assert density.sum() * step == pytest.approx(1, abs=2e-3)
        assert -(density * np.where(density > 0, logs, 0)).sum() * step == pytest.approx(own.entropy().item(), abs=5e-3)


@pytest.mark.parametrize("name", CASES)
def test_samples(name: str) -> None:
    own = made(name, "float32")
    found = own.sample((20_000,)).numpy()
    assert found.shape == (20_000,)
    assert np.isfinite(found).all()
    if name == "Cauchy":
        assert np.median(found) == pytest.approx(0.5, abs=0.1)
        return
    spread = np.sqrt(own.variance.item())
    assert found.mean() == pytest.approx(own.mean.item(), abs=5 * spread / 141)
    assert found.std() == pytest.approx(spread, rel=0.1)
    assert own.sample(3).shape == (3,)


@pytest.mark.parametrize("name", ["Normal", "Laplace", "Gumbel"])
def test_gradients_of_samples(name: str) -> None:
    make: Callable[..., Any] = getattr(OURS, name)
    x = Tensor([1.0, 2.0])
    loc, scale = grad(lambda loc, scale: make(loc, scale).rsample((5,)).sum(), (0, 1))(x, x)
    assert loc.tolist() == [5, 5]
    assert (np.abs(scale.numpy()) > 0).all()
    slope = grad(lambda loc: make(loc, 2.0).log_prob(Tensor(0.3)))(Tensor(0.5)).item()
    ends = [make(0.5 + h, 2.0).log_prob(Tensor(0.3)).item() for h in (-1e-2, 1e-2)]
    assert slope == pytest.approx((ends[1] - ends[0]) / 2e-2, abs=1e-3)


def test_captured_samples_differ() -> None:
    draw = jit(lambda loc: distributions.Normal(loc, 1.0).sample((4,)))
    found = [draw(Tensor([0.0])).numpy().copy() for _ in range(4)]
    assert len({one.tobytes() for one in found}) == 4


def test_normal_vectors() -> None:
    factor = np.random.default_rng(0).standard_normal((3, 3))
    covariance, mean = factor @ factor.T + np.eye(3), np.array([1.0, -1.0, 0.5])
    own = distributions.MultivariateNormal(Tensor(mean), Tensor(covariance))
    x = np.array([[0.3, 0.2, -0.5], [1.0, 2.0, 3.0]])
    distance = x - mean
    size = np.linalg.slogdet(covariance)[1]
    want = -0.5 * np.einsum("bi,ij,bj->b", distance, np.linalg.inv(covariance), distance)
    want -= 0.5 * (size + 3 * np.log(2 * np.pi))
    np.testing.assert_allclose(own.log_prob(Tensor(x)).numpy(), want, rtol=1e-9)
    np.testing.assert_allclose(own.entropy().item(), 0.5 * (size + 3 * (1 + np.log(2 * np.pi))), rtol=1e-9)
    np.testing.assert_allclose(own.covariance_matrix.numpy(), covariance, rtol=1e-9)
    found = own.sample((20_000,)).numpy()
    np.testing.assert_allclose(found.mean(0), mean, atol=0.1)
    np.testing.assert_allclose(np.cov(found.T), covariance, atol=0.3)
    same = distributions.MultivariateNormal(Tensor(mean), scale_tril=Tensor(np.linalg.cholesky(covariance)))
    np.testing.assert_allclose(same.log_prob(Tensor(x)).numpy(), want, rtol=1e-9)


def test_mistakes() -> None:
    with pytest.raises(SettingError, match=r"^Normal: scale=-1. Give a positive number, or a tensor of them."):
        distributions.Normal(0.0, -1)
    with pytest.raises(ShapeError, match="Normal"):
        distributions.Normal(Tensor([1.0, 2.0]), Tensor([1.0, 2.0, 3.0]))
    with pytest.raises(ShapeError, match=r"^MultivariateNormal: a mean of shape \(3,\) and a matrix of shape \(2,"):
        distributions.MultivariateNormal(Tensor([0.0, 0.0, 0.0]), Tensor(np.eye(2)))
    with pytest.raises(ShapeError, match=r"^MultivariateNormal: give either covariance_matrix or scale_tril."):
        distributions.MultivariateNormal(Tensor([0.0]))
    with pytest.raises(ShapeError, match=r"^Normal.sample: sample_shape='x'. Give a tuple of sizes."):
        distributions.Normal(0.0, 1.0).sample("x")  # type: ignore[arg-type]
