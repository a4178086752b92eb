"""Eigenvalues and singular values: legal programs; tests/kernmill/methods/test_spectral.py has the values."""

from __future__ import annotations

import pytest

from kernmill.compiler import eigh_count, svd_count, tridiagonal_count

from .programs import TARGETS, program


@pytest.mark.parametrize("target", TARGETS)
def test_programs_are_legal(target: str) -> None:
    for n, batch, interleaved in ((2, 1, False), (5, 9, True), (40, 2, False)):
        program(target, "svd", (svd_count(n, n), n * n), batch, interleaved, n, n)
        program(target, "eigh", (eigh_count(n), n * n), batch, interleaved, n)
    program(target, "eigh_large", (tridiagonal_count(40), 1600), 1, False, 40)
