"""Tell two spirals apart with a small network: `python examples/spirals.py [--steps N]`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from kernmill import Tensor, jit, manual_seed, nn, no_grad


def spirals(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points of two spirals, float32 [2 * count, 2], and their classes."""
    random = np.random.default_rng(seed)
    angle = np.sqrt(random.random((count, 1))) * 3 * np.pi
    arm = np.concatenate([np.cos(angle) * angle, np.sin(angle) * angle], 1) / 10
    points = np.concatenate([arm, -arm]) + random.normal(0, 0.03, (2 * count, 2))
    return points.astype(np.float32), np.repeat([0, 1], count)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    steps = parser.parse_args(given).steps
    manual_seed(1)
    points, classes = map(Tensor, spirals(500))
    model = nn.Sequential(nn.Linear(2, 64), Tensor.tanh, nn.Linear(64, 64), Tensor.tanh, nn.Linear(64, 2))
    optimizer = nn.optim.AdamW(model.parameters(), lr=1e-2)

    @jit
    def step() -> Tensor:
        optimizer.zero_grad()
        loss = model(points).cross_entropy(classes)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for number in range(steps):
        loss = step()
        if number % 100 == 0:
            print(f"step {number}: loss {loss.item():.4f}")
    with no_grad():
        accuracy = (model(points).argmax(1) == classes).float().mean().item()
    print(f"accuracy {100 * accuracy:.1f} %")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
