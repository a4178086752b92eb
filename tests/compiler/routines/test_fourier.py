"""The transform as a program: vectors along butterflies and along entries, shared roots of unity, lanes of a batch."""

from __future__ import annotations

import pytest

from .programs import TARGETS, kinds, lanes, program

CASES = [(8, (8,)), (60, (5, 4, 3)), (13, (13,)), (256, (8, 8, 4))]


@pytest.mark.parametrize("target", list(TARGETS))
@pytest.mark.parametrize(("n", "radices"), CASES)
def test_programs_are_legal(target: str, n: int, radices: tuple[int, ...]) -> None:
    count = 2 * n * min(2, len(radices))
    for is_inverse, is_real, batch, interleaved in ((0, 0, 1, False), (1, 0, 3, False), (0, 1, 9, True)):
        counts = (count, n if is_real else 2 * n, 4 * n)
        assert program(target, "fft", counts, batch, interleaved, n, is_inverse, is_real, *radices)


def test_vectors_and_threads() -> None:
    rows = program("vectors", "fft", (1024, 512, 1024), 3, False, 256, 0, 0, 8, 8, 4)
    assert lanes(rows) == lanes(program("vectors", "fft", (16, 16, 32), 9, True, 8, 0, 0, 8)) > 1
    assert "thread" in kinds(rows)
    assert lanes(program("scalars", "fft", (1024, 512, 1024), 1, False, 256, 0, 0, 8, 8, 4)) == 1
