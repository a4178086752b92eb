"""Cholesky, LU, systems and triangular systems: legal programs on every kind of target, whose size is bounded.

tests/kernmill/methods/test_factors.py has their values.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .programs import TARGETS, program

ROUTINES: dict[str, tuple[Callable[[int], tuple[int, ...]], tuple[int, ...]]] = {
    "cholesky": ((lambda n: (n * n, n * n)), ()),
    "lu": ((lambda n: (n * n + 2 * n, n * n)), ()),
    "solve": ((lambda n: (n * 3 + n * n + n, n * n, n * 3)), (3,)),
    "triangular": ((lambda n: (n * 3, n * n, n * 3)), (3, 1, 0, 1)),
}


@pytest.mark.parametrize("name", ROUTINES)
@pytest.mark.parametrize("target", TARGETS)
def test_programs_are_legal(target: str, name: str) -> None:
    counts, sizes = ROUTINES[name]
    for n, batch, interleaved in ((1, 1, False), (4, 1, False), (4, 11, True), (50, 3, False)):
        program(target, name, counts(n), batch, interleaved, n, *sizes)


@pytest.mark.parametrize("name", ROUTINES)
def test_the_program_does_not_grow_with_the_matrix(name: str) -> None:
    counts, sizes = ROUTINES[name]
    small, large = (len(program("vectors", name, counts(n), 1, False, n, *sizes)) for n in (130, 1030))
    assert large <= small * 1.1
