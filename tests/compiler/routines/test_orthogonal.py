"""QR: legal programs; tests/kernmill/methods/test_factors.py has the values."""

from __future__ import annotations

import pytest

from kernmill.compiler import qr_count

from .programs import TARGETS, program


@pytest.mark.parametrize("target", TARGETS)
def test_programs_are_legal(target: str) -> None:
    for m, n, q, batch, interleaved in (
        (1, 1, 1, 1, False),
        (5, 3, 5, 9, True),
        (50, 40, 40, 1, False),
        (40, 50, 40, 2, False),
    ):
        program(target, "qr", (qr_count(m, n, q), m * n), batch, interleaved, m, n, q)
