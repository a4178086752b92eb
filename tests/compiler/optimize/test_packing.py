"""Panels: what is packed, over which loops, and that every choice can be lowered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernmill.compiler import choose_actions, lower, merge_loops
from kernmill.ir import Target, UOp, permute
from tests.compiler.kernels import VECTORS, data, matmul, only

NO_MASKS = replace(VECTORS, name="sse", vector_bytes=16, vector_registers=16, has_masks=False)


def packed(root: UOp, target: Target = VECTORS) -> list[tuple[str, ...]]:
    """The arguments of every `stage`."""
    return [action.args for action in choose_actions(merge_loops(only(root)), target) if action.verb == "stage"]


def test_a_small_operand_is_read_as_it_lies() -> None:
    assert not packed(matmul(data(0, 64, 64), data(1, 64, 64)))


def test_a_large_operand_is_packed_for_its_rows() -> None:
    assert [args[0] for args in packed(matmul(data(0, 1024, 1024), data(1, 1024, 1024)))] == ["2"]


@pytest.mark.parametrize(("rows", "inner", "columns"), [(513, 512, 511), (40, 66, 8), (54, 66, 24)])
def test_panels_name_only_loops_that_are_there(rows: int, inner: int, columns: int) -> None:
    """Named regression: lanes that a target without masks cannot have, and a sum cut by `group`, not by `unroll`."""
    narrow = replace(VECTORS, vector_bytes=32, vector_registers=16, has_masks=False)
    for right in (data(1, inner, columns), permute(data(1, columns, inner), (1, 0))):
        lower(only(matmul(data(0, rows, inner), right)), narrow, is_checked=True)


@pytest.mark.parametrize("target", [VECTORS, NO_MASKS], ids=["masks", "no masks"])
@pytest.mark.parametrize(
    ("rows", "columns", "inner"), [(46, 17, 49), (10, 16, 26), (38, 8, 44), (18, 13, 32), (82, 8, 18), (44, 17, 17)]
)
def test_a_packed_panel_names_the_loops_there_are(rows: int, columns: int, inner: int, target: Target) -> None:
    """Once refused: lanes that did not come about for want of masks, or copies of a sum that was grouped instead."""
    right = permute(data(1, columns, inner), (1, 0))
    lower(only(matmul(data(0, rows, inner), right)), target, is_checked=True)
