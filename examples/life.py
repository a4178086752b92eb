"""Conway's game of life: `python examples/life.py [--size N] [--steps N] [--show]`.

Neighbours are counted with `roll`, so the board has no borders.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from kernmill import Tensor, jit

GLIDER = ((0, 1), (1, 2), (2, 0), (2, 1), (2, 2))


@jit
def step(board: Tensor) -> Tensor:
    """The next generation of a board of bools."""
    cells = board.int()
    around = sum(cells.roll((down, right), (0, 1)) for down in (-1, 0, 1) for right in (-1, 0, 1)) - cells
    return (around == 3) | (board & (around == 2))


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--show", action="store_true", help="print the last board")
    options = parser.parse_args(given)
    start = np.zeros((options.size, options.size), bool)
    for row, column in GLIDER:
        start[row, column] = True
    board = Tensor(start)
    for _ in range(options.steps):
        board = step(board)
    cells = board.numpy()
    if options.show:
        print("\n".join("".join("#" if cell else "." for cell in row) for row in cells))
    moved = np.roll(start, (options.steps // 4, options.steps // 4), (0, 1))
    print(f"after {options.steps} steps: {cells.sum()} cells, "
          f"the glider is {'where it should be' if (cells == moved).all() else 'on its way'}")  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
