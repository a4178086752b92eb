"""kl_divergence against sums and integrals of log p - log q."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import SettingError, Tensor, distributions
from kernmill.distributions import kl_divergence
from tests.kernmill.against import only_on

on_device = only_on("LLVM")
OURS: Any = distributions
GRID = np.linspace(-40, 40, 200_001)


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("Normal", (0.5, 1.0), (-0.5, 2.0)),
        ("Laplace", (0.5, 1.0), (-0.5, 2.0)),
        ("Exponential", (1.5,), (0.7,)),
        ("Uniform", (0.0, 1.0), (-1.0, 2.0)),
    ],
)
def test_continuous(name: str, first: tuple[float, ...], second: tuple[float, ...]) -> None:
    p, q = (getattr(OURS, name)(*[Tensor(np.array(x)) for x in given]) for given in (first, second))
    a, b = (one.log_prob(Tensor(GRID)).numpy() for one in (p, q))
    with np.errstate(all="ignore"):
        want = np.nansum(np.where(np.isfinite(a), np.exp(a) * (a - b), 0)) * (GRID[1] - GRID[0])
    assert kl_divergence(p, q).item() == pytest.approx(want, abs=2e-3)
    assert kl_divergence(p, p).item() == pytest.approx(0, abs=1e-9)


def test_discrete() -> None:
    p, q = np.array([0.1, 0.6, 0.3]), np.array([0.3, 0.3, 0.4])
    found = kl_divergence(OURS.Categorical(Tensor(p)), OURS.Categorical(Tensor(q))).item()
    assert found == pytest.approx((p * np.log(p / q)).sum())
    both = kl_divergence(OURS.Bernoulli(Tensor(p)), OURS.Bernoulli(Tensor(q))).numpy()
    np.testing.assert_allclose(both, p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)), rtol=1e-6)
    first, second = OURS.Geometric(Tensor(np.array(0.3))), OURS.Geometric(Tensor(np.array(0.5)))
    count = Tensor(np.arange(200))
    a, b = first.log_prob(count).numpy(), second.log_prob(count).numpy()
    assert kl_divergence(first, second).item() == pytest.approx((np.exp(a) * (a - b)).sum())


def test_vectors() -> None:
    draw = np.random.default_rng(0)
    mats = [m @ m.T + np.eye(3) for m in draw.standard_normal((2, 3, 3))]
    means = draw.standard_normal((2, 3))
    p, q = (OURS.MultivariateNormal(Tensor(m), Tensor(c)) for m, c in zip(means, mats, strict=True))
    inverse, distance = np.linalg.inv(mats[1]), means[1] - means[0]
    want = np.trace(inverse @ mats[0]) + distance @ inverse @ distance - 3
    want = 0.5 * (want + np.linalg.slogdet(mats[1])[1] - np.linalg.slogdet(mats[0])[1])
    assert kl_divergence(p, q).item() == pytest.approx(want)


def test_what_has_no_formula() -> None:
    with pytest.raises(SettingError, match=r"^kl_divergence: no formula for Normal and Laplace. Estimate it"):
        kl_divergence(OURS.Normal(0.0, 1.0), OURS.Laplace(0.0, 1.0))
