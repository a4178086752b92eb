"""One element of a copy for each place that a window goes over."""

from __future__ import annotations

import pytest

from kernmill.compiler import apply_actions, merge_loops, parse_schedule
from kernmill.ir import Ops, UOp
from tests.compiler.kernels import close, convolution, data, inputs, only, run_ast

PLAIN = only(convolution(data(0, 2, 3, 7, 9), data(1, 4, 3, 3, 3)))


def staged(ast: UOp, text: str) -> UOp:
    return apply_actions(merge_loops(ast), parse_schedule(text))


def test_rows_under_a_window_are_copied_once() -> None:
    ast = staged(PLAIN, "stage 1 k0 i2 k1 i3 k2")
    (memory,) = [node for node in ast.toposort() if node.op is Ops.LOCAL]
    assert memory.arg[1] == 3 * 7 * 9  # channels, rows and columns of the image; not 3 * 5 * 3 * 7 * 3


@pytest.mark.parametrize("text", ["stage 1 k0 i2 k1 i3 k2", "stage 1 k0 k1 i3 k2", "stage 1 k0 k1 k2 i3",
                                  "stage 1 i3 k2; vectorize i3' 4", "stage 1 k0 i2 k1 i3 k2; unroll i3 4; unroll k2 3",
                                  "vectorize i3 4; stage 1 k0 k1 i3 k2 i3.v"])  # fmt: skip
def test_the_meaning_stays(text: str) -> None:
    arrays = inputs(PLAIN)
    close(run_ast(staged(PLAIN, text), arrays), run_ast(PLAIN, arrays))
