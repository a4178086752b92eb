"""One element of a copy for each place that a window goes over."""

from __future__ import annotations

import numpy as np
import pytest

from kernmill.compiler import apply_actions, merge_loops, parse_schedule
from kernmill.ir import (
    AxisKind,
    CompileError,
    Ops,
    Stage,
    UOp,
    assign,
    broadcast_to,
    dtypes,
    elementwise,
    iota,
    permute,
    reshape,
    strided,
    take,
    verify,
)
from tests.compiler.kernels import (
    attention,
    close,
    convolution,
    data,
    inputs,
    kernels,
    matmul,
    only,
    run_ast,
    run_on,
    scheduled,
    softmax,
)

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


@pytest.mark.parametrize("size", [35, 50, 64])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "unroll i0 4",
        "vectorize i0 8; thread i0",
        "vectorize t0_0 16; unroll t0_0 2; vectorize i1 16; vectorize k1 16; rfactor k1 2; thread i0",
        "vectorize i1 8; unroll i0 2; unroll t0_0 3; stream",
    ],
)
def test_a_row_in_the_output_gives_the_same(text: str, size: int) -> None:
    ast = merge_loops(only(softmax(data(0, 9, size))))
    arrays, actions = inputs(ast), parse_schedule(f"buffer_in_output t0_0; {text}")
    one = staged(ast, f"buffer_in_output t0_0; {text}")
    assert not any(node.op is Ops.LOCAL for node in one.toposort())
    verify(one, Stage.OPTIMIZED, text)
    for device in ("LLVM",) if "vectorize" in text else ("LLVM", "PYTHON"):
        close(run_on(device, ast, arrays, actions), run_ast(ast, arrays))


@pytest.mark.parametrize(
    ("root", "why"),
    [
        (strided(softmax(data(0, 16, 64)), (1, -1)), "already overwritten"),
        (softmax(data(0, 16, 64)).cast(dtypes.float16), "same size and dtype"),
        (attention(data(0, 40, 4), data(1, 64, 4), data(2, 64, 4)), "same size and dtype"),
    ],
)
def test_a_row_whose_elements_are_read_elsewhere_stays_apart(root: UOp, why: str) -> None:
    ast = merge_loops(only(root))
    loops = [node.src[-1].arg[0] for node in ast.toposort() if node.op is Ops.AFTER]
    for loop in loops:
        with pytest.raises(CompileError, match=why):
            staged(ast, f"buffer_in_output {loop}")


def test_a_row_does_not_lie_where_old_values_are_read() -> None:
    """x.assign(x + softmax(y)) in place: the row was put over the x that is added to it."""
    x, y = data(0, 9, 64), data(1, 9, 64)
    (kernel,) = kernels(scheduled(assign(x, elementwise(Ops.ADD, x, softmax(y))), in_place=(0,)))
    with pytest.raises(CompileError, match="reads the old values of its output"):
        staged(kernel.ast, "buffer_in_output t0_0")


@pytest.mark.parametrize(
    "text", ["order i1 i0", "thread i1", "grid i0 i1", "share k1 8", "split i1 16; order i1 i0 i1.s"]
)
def test_a_row_in_the_output_is_filled_once(text: str) -> None:
    """Each of these fills it again where results of it lie already: the output was the row."""
    ast = merge_loops(only(softmax(data(0, 9, 64))))
    with pytest.raises(CompileError, match="written twice"):
        staged(ast, f"buffer_in_output t0_0; {text}")
    staged(ast, "buffer_in_output t0_0; split i0 4; split i1 16; order i0 i0.s i1.s i1; grid i0 i0.s")


@pytest.mark.parametrize("slot", [1, 2])
def test_what_reads_nothing_of_a_row_is_stored_after_it_as_well(slot: int) -> None:
    """Every second place is of the other operand, and was stored before the row that lies in the output."""
    wide = [broadcast_to(reshape(data(slot, 50), (50, 1)), (50, 2)) for slot in (0, 1)]
    is_first = broadcast_to(reshape(iota(2), (1, 2)), (50, 2)) < 1
    ast = only(reshape(is_first.where(*wide), (100,)) + 1.0)
    arrays, text = inputs(ast), f"unroll i0 4; stage {slot} i0.u; inplace i0.u'"
    for device in ("LLVM", "PYTHON"):
        close(run_on(device, ast, arrays, parse_schedule(text)), run_ast(ast, arrays))


def test_a_copy_of_far_places_around_near_ones_is_a_loop() -> None:
    turned = only(matmul(data(0, 12, 32), permute(data(1, 64, 32), (1, 0))))
    ast = staged(turned, "vectorize i1 4; unroll i1 4; unroll k0 2; order i1 i0; stage 2 k0 k0.u i1.u i1.v")
    loops = [node for node in ast.toposort() if node.op is Ops.RANGE]
    assert {str(loop.arg[0]): loop.arg[1] for loop in loops if loop.arg[0].endswith("'")} == {
        "i1.u'": AxisKind.REDUCE, "i1.v'": AxisKind.VECTOR, "k0'": AxisKind.REDUCE, "k0.u'": AxisKind.UNROLL,
    }  # fmt: skip
    arrays = inputs(turned)
    close(run_ast(ast, arrays), run_ast(turned, arrays))


def test_a_place_that_is_clamped_is_the_last_one() -> None:
    """Named regression: a search staged table[min(places, last)], and read 0 behind the last place."""
    values, places = data(0, 21), data(1, 64, dtype=dtypes.int64)
    ast = only(take(values, places, 0))
    arrays = inputs(ast)
    arrays[1][:], arrays[2][:] = np.arange(1, 22), np.arange(64)
    want = run_ast(ast, arrays)
    assert want[-1] == 21
    for text in ("stage 1 i0", "vectorize i0 16; stage 1 i0.v", "unroll i0 5; stage 1 i0.u"):
        np.testing.assert_array_equal(run_ast(staged(ast, text), arrays), want)
