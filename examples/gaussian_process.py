"""Fit a Gaussian process: `python examples/gaussian_process.py [--points N] [--steps N]`.

The marginal likelihood is a Cholesky factor and a triangular solve, and gradients flow through both. The length of the
kernel, its height and the noise are learned, and the fitted curve is printed with its uncertainty.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import numpy as np

from kernmill import Tensor, dtypes, jit, nn, no_grad


def kernel(a: Tensor, b: Tensor, logs: Tensor) -> Tensor:
    """The covariance of values at positions a and b."""
    length, height = logs[0].exp(), logs[1].exp()
    return height * (((a.unsqueeze(1) - b.unsqueeze(0)) / length).square() * -0.5).exp()


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=60)
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args(given)
    random = np.random.default_rng(0)
    positions = np.sort(random.uniform(0, 10, options.points))
    x = Tensor(positions)
    y = Tensor(np.sin(positions) + random.normal(0, 0.2, options.points))
    identity = Tensor.eye(options.points, dtype=dtypes.float64)
    logs = Tensor(np.array([1.0, -1.0, 0.0]), requires_grad=True)  # of length, height and noise
    optimizer = nn.optim.Adam([logs], lr=0.05)

    def factor() -> Tensor:
        found: Tensor = (kernel(x, x, logs) + identity * (logs[2].exp() + 1e-6)).cholesky()
        return found

    @jit
    def step() -> Tensor:
        optimizer.zero_grad()
        lower = factor()
        whitened = lower.solve_triangular(y.unsqueeze(1), upper=False)
        loss = whitened.square().sum() * 0.5 + lower.diagonal().log().sum()
        loss.backward()
        optimizer.step()
        per_point: Tensor = loss / options.points + 0.5 * math.log(2 * math.pi)
        return per_point

    for i in range(options.steps):
        loss = step()
        if i % 50 == 0:
            print(f"step {i}: {loss.item():.3f} per point")
    with no_grad():
        places = Tensor(np.linspace(0, 10, 6))
        lower = factor()
        across = kernel(places, x, logs)
        mean = across @ lower.mT.solve_triangular(lower.solve_triangular(y.unsqueeze(1), upper=False), upper=True)
        left = logs[1].exp() - lower.solve_triangular(across.mT, upper=False).square().sum(0)
        for place, value, spread in zip(places.tolist(), mean[:, 0].tolist(), left.sqrt().tolist(), strict=True):
            print(f"at {place:4.1f}: {value:6.2f} +- {2 * spread:.2f}, the sine is {math.sin(place):5.2f}")
    print(f"length {math.exp(logs[0].item()):.2f}, noise {math.sqrt(math.exp(logs[2].item())):.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
