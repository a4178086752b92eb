"""Gamma, Beta, Dirichlet, Poisson and Student's t: PyTorch's values, sums and samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import ShapeError, Tensor, distributions
from kernmill.distributions import kl_divergence
from tests.kernmill.against import only_on

on_device = only_on("LLVM")
OURS: Any = distributions
CASES: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "Gamma": ((2.5, 1.5), (0.7, 2.0)),
    "Beta": ((2.5, 1.5), (0.7, 2.0)),
    "Dirichlet": (([2.5, 1.5, 0.7],), ([1.0, 2.0, 3.0],)),
    "Poisson": ((3.5,), (8.0,)),
    "StudentT": ((5.0, 0.5, 2.0), (3.0, 0.0, 1.0)),
}
VALUES = {"Dirichlet": np.array([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]]), "Poisson": np.array([0.0, 2.0, 7.0])}


def made(name: str, parameters: tuple[Any, ...]) -> Any:
    return getattr(OURS, name)(*[Tensor(np.array(p)) for p in parameters])


@pytest.mark.parametrize("name", CASES)
def test_values_are_pytorchs(name: str) -> None:
    torch: Any = pytest.importorskip("torch")
    x = VALUES.get(name, np.array([0.1, 0.4, 0.9]))
    pairs = []
    for parameters in CASES[name]:
        own = made(name, parameters)
        other = getattr(torch.distributions, name)(*[torch.tensor(p, dtype=torch.float64) for p in parameters])
        np.testing.assert_allclose(own.log_prob(Tensor(x)).numpy(), other.log_prob(torch.tensor(x)).numpy(), rtol=1e-6)
        if name != "Poisson":
            np.testing.assert_allclose(own.entropy().numpy(), other.entropy().numpy(), rtol=1e-6)
        pairs.append((own, other))
    if name != "StudentT":
        (p, a), (q, b) = pairs
        want = torch.distributions.kl_divergence(a, b).numpy()
        np.testing.assert_allclose(kl_divergence(p, q).numpy(), want, rtol=1e-6)


@pytest.mark.parametrize("name", ["Gamma", "Beta", "Poisson"])
def test_samples(name: str) -> None:
    for parameters in CASES[name]:
        own = made(name, parameters)
        found = own.sample((20_000,)).numpy()
        spread = np.sqrt(own.variance.item())
        assert found.mean() == pytest.approx(own.mean.item(), abs=5 * spread / 141)
        assert found.std() == pytest.approx(spread, rel=0.05)
    assert made("Poisson", (50.0,)).sample((5_000,)).numpy().mean() == pytest.approx(50, abs=0.5)


def test_samples_of_vectors_and_tails() -> None:
    found = made("Dirichlet", CASES["Dirichlet"][0]).sample((20_000,)).numpy()
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-9)
    np.testing.assert_allclose(found.mean(0), np.array([2.5, 1.5, 0.7]) / 4.7, atol=0.01)
    wide = made("StudentT", (5.0, 0.5, 2.0)).sample((20_000,)).numpy()
    assert wide.var() == pytest.approx(4 * 5 / 3, rel=0.15)


def test_probabilities_have_sum_one() -> None:
    logs = made("Poisson", (3.5,)).log_prob(Tensor(np.arange(60))).numpy()
    assert np.exp(logs).sum() == pytest.approx(1)


def test_mistakes() -> None:
    with pytest.raises(ShapeError, match=r"^Dirichlet: concentration must be a tensor with an axis of classes."):
        OURS.Dirichlet(Tensor(1.0))
