"""Compress pictures of bars to a few numbers and back: `python examples/autoencoder.py [--steps N]`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from kernmill import Tensor, jit, manual_seed, nn, no_grad

SIZE = 16


def pictures(count: int, seed: int) -> np.ndarray:
    """Pictures of one horizontal or vertical bar each, float32 [count, 1, SIZE, SIZE]."""
    random = np.random.default_rng(seed)
    made = np.zeros((count, 1, SIZE, SIZE), np.float32)
    for picture, is_row, start in zip(
        made, random.random(count) < 0.5, random.integers(0, SIZE - 3, count), strict=True
    ):
        bar = slice(start, start + 3)
        picture[0][(bar, slice(None)) if is_row else (slice(None), bar)] = 1
    return made


class Autoencoder(nn.Module):
    """Two convolutions down to four numbers, and two transposed ones up again."""

    def __init__(self) -> None:
        self.down = nn.Sequential(nn.Conv2d(1, 8, 4, stride=4), Tensor.relu, nn.Conv2d(8, 16, 4))
        self.code, self.decode = nn.Linear(16, 4), nn.Linear(4, 16)
        self.up = nn.Sequential(nn.ConvTranspose2d(16, 8, 4), Tensor.relu, nn.ConvTranspose2d(8, 1, 4, stride=4))

    def forward(self, x: Tensor) -> Tensor:
        code = self.code(self.down(x).flatten(1).relu())
        return self.up(self.decode(code).relu().reshape(-1, 16, 1, 1))


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    steps = parser.parse_args(given).steps
    manual_seed(0)
    model = Autoencoder()
    optimizer = nn.optim.Adam(model.parameters(), lr=3e-3)

    @jit
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).binary_cross_entropy_with_logits(x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for number in range(steps):
        loss = step(Tensor(pictures(64, number)))
        if number % 100 == 0:
            print(f"step {number}: loss {loss.item():.4f}")
    test = pictures(64, 10_000)
    with no_grad():
        right = ((model(Tensor(test)) > 0).numpy() == (test > 0.5)).mean()
    print(f"pixels right {100 * right:.1f} %")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
