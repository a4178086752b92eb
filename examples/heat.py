"""Heat in a plate, by finite differences: `python examples/heat.py [--size N] [--steps N]`.

One captured step is one kernel; the temperature is updated in place.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from kernmill import Tensor, jit


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=500)
    options = parser.parse_args(given)
    plate = Tensor.zeros(options.size, options.size)
    plate[0] = 100.0  # one edge is hot
    plate.realize()

    @jit
    def step() -> None:
        t = plate
        around = t[:-2, 1:-1] + t[2:, 1:-1] + t[1:-1, :-2] + t[1:-1, 2:]
        plate[1:-1, 1:-1] = t[1:-1, 1:-1] + 0.2 * (around - 4 * t[1:-1, 1:-1])

    for _ in range(options.steps):
        step()
    print(f"after {options.steps} steps: mean {plate.mean().item():.3f}, centre "
          f"{plate[options.size // 2, options.size // 2].item():.3f}")  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
