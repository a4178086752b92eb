"""The size of a register tile: its vectors and rows, and the accumulators that hide the latency of an addition.

Why: docs/topics/matrix-products.md. Tests: tests/compiler/optimize/test_tiles.py.
"""

from __future__ import annotations

from math import prod
from typing import Final

from kernmill.ir import Target

__all__ = [
    "BLOCKS", "LEAST_READERS", "MANY_ACCUMULATORS", "MOST_ROWS", "MOST_VECTORS", "SHARES", "SMALL_BLOCKS",
    "SMALL_ROWS",     "accumulators", "best_block", "tile_of",
]  # fmt: skip

BLOCKS = ((4, 6), (3, 8), (2, 8), (1, 8))  # vectors and rows of a register tile with many accumulators
SMALL_BLOCKS = ((2, 4), (1, 4))  # and with fewer
MANY_ACCUMULATORS: Final = max(vectors * rows for vectors, rows in BLOCKS)
MOST_VECTORS: Final = max(vectors for vectors, _ in BLOCKS)
MOST_ROWS: Final = max(rows for _, rows in BLOCKS)
SMALL_ROWS: Final = SMALL_BLOCKS[0][1]
SHARES = 4  # blocks of panels: one for each of four threads
LEAST_READERS = 4  # tiles that read a copy, from which on making it pays


def tile_of(size: int, most: int) -> int:
    """Return a tile size from `most` / 2 to `most`. It weighs padding of the last tile against 1/25 for each row below
    `most`, since other loads of a tile serve fewer rows. `even_part` weighs differently."""
    if size <= most or most < 2:
        return max(1, min(size, most))
    return max(range(max(2, most // 2), most + 1), key=lambda t: size / -(-size // t) / t * (1 - 0.04 * (most - t)))


def best_block(blocks: int, rows: int, many: bool, target: Target, run_cycles: float = 0.0) -> tuple[int, int]:
    """Return vectors and rows of a register tile: the shape with the most useful multiply-adds per cycle, given the
    sizes. `run_cycles`: of beginning to store a row of the tile, per reduction element."""

    machine = target.machine

    def worth(block: tuple[int, int]) -> float:
        columns, most = block
        tile = tile_of(rows, most)
        used = blocks / (-(-blocks // columns) * columns) * rows / (-(-rows // tile) * tile)
        sums, loads = columns * tile, columns + tile
        parts = (
            sums / machine.fma, machine.latency, loads / machine.load,
            columns * target.vector_bytes / machine.levels[0].bytes_per_cycle, (sums + loads + 2) / machine.issue,
        )  # fmt: skip
        cycles = sum(part**machine.overlap for part in parts) ** (1 / machine.overlap) + tile * run_cycles
        return float(used * sums / cycles)

    whole = ((2, rows),) if many and BLOCKS[1][1] < rows <= prod(BLOCKS[0]) // 2 else ()  # the other is read once
    columns, most = max((*(BLOCKS if many else SMALL_BLOCKS), *whole), key=worth)
    return columns, tile_of(rows, most)


def accumulators(blocks: int, sums: int = 1) -> int:
    """Return the accumulators of a loop that hide the latency of one addition."""
    fitting = (g for g in (4, 2) if sums * g <= 8 and blocks >= 2 * g)
    return next((g for g in fitting if blocks % g == 0 or blocks > 8 * g), 1)
