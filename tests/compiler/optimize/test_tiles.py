"""Sizes of register tiles: what fits into the registers, as little of it empty as possible."""

from __future__ import annotations

import pytest

from kernmill.compiler import accumulators, best_block, tile_of
from tests.compiler.corpus import TARGETS


@pytest.mark.parametrize(
    ("size", "most", "tile"),
    [
        (5, 8, 5),
        (1, 8, 1),
        (0, 8, 1),
        (64, 8, 8),
        (9, 8, 5),
        (14, 8, 7),
        (1000, 6, 6),
        (10, 6, 5),
        (7, 1, 1),
        (7, 4, 4),
    ],
)
def test_a_tile_leaves_few_places_empty(size: int, most: int, tile: int) -> None:
    assert tile_of(size, most) == tile


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 7, 100])
def test_a_block_fits_into_the_registers(blocks: int, name: str) -> None:
    for rows in range(1, 70):
        for many, room in ((True, 24), (False, 8)):
            columns, high = best_block(blocks, rows, many, TARGETS[name])
            assert 1 <= columns * high <= room
            assert high <= rows


def test_a_block_has_the_most_useful_products_per_cycle() -> None:
    zen4 = TARGETS["zen4"]
    assert best_block(100, 48, True, zen4) == (4, 6)
    assert best_block(1, 64, True, zen4) == (1, 8)
    assert best_block(100, 11, True, zen4) == (2, 11)  # the other operand is read once
    assert best_block(100, 64, False, zen4) == (2, 4)
    far = best_block(4, 56, True, zen4), best_block(4, 56, True, zen4, run_cycles=1.0)
    assert far == ((2, 8), (4, 6)), "fewer rows are begun where each is far away"


@pytest.mark.parametrize(
    ("blocks", "sums", "count"), [(100, 1, 4), (100, 2, 4), (100, 4, 2), (100, 8, 1), (6, 1, 2), (3, 1, 1), (34, 4, 2)]
)
def test_sums_hide_what_an_addition_takes(blocks: int, sums: int, count: int) -> None:
    assert accumulators(blocks, sums) == count
