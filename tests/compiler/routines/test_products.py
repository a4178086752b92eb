"""Products inside of routines: tiles of whole vectors, and what is left of rows and columns."""

from __future__ import annotations

from kernmill.ir import Ops

from .programs import program


def test_a_tile_keeps_its_sums_in_registers() -> None:
    """Eight rows of two vectors with 32 registers, four of two with fewer, scalars without vectors."""
    for target, tile, width in (("wide", 16, 8), ("scalars", 4, 1)):
        uops = program(target, "triangular", (64 * 64,) * 3, 1, False, 64, 64, 1, 0, 0)
        wide = [u for u in uops if u.op is Ops.REG and u.dtype.lanes == width]
        assert len(wide) >= tile
