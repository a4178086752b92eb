"""Loops that end early: with the triangle of a mask, never inside it; and what is left alone."""

from __future__ import annotations

import pytest

from kernmill.compiler import apply_actions, merge_loops, parse_schedule, trim_loops
from kernmill.ir import Ops, UOp, const, dtypes, elementwise, iota, reshape, substitute
from tests.compiler.kernels import (
    F32,
    attention,
    close,
    data,
    inputs,
    kernels,
    matmul,
    only,
    params,
    run_ast,
    run_on,
    scheduled,
    softmax,
    total,
    triangle,
)


def ends(ast: UOp) -> dict[str, UOp]:
    return {str(n.arg[0]): n.src[0] for n in ast.toposort() if n.op is Ops.RANGE}


SCHEDULES = [
    "", "unroll i0 4", "vectorize i0 16", "vectorize k0 16", "rfactor k0 4; unroll i0 2", "unroll k0 3", "split i0 8",
]  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("rows", "columns"), [(96, 96), (90, 170), (170, 90)])
@pytest.mark.parametrize("is_open", [False, True])
def test_a_triangle_is_summed_whole(schedule: str, rows: int, columns: int, is_open: bool) -> None:
    ast = merge_loops(only(triangle(rows, columns, is_open=is_open)))
    arrays = inputs(ast)
    actions = parse_schedule(schedule)
    assert ends(trim_loops(apply_actions(ast, actions)))["k0"].is_const == (schedule == "vectorize k0 16")
    close(run_on("LLVM", ast, arrays, actions), run_ast(ast, arrays))


def test_a_tile_ends_with_its_last_row() -> None:
    ast = trim_loops(apply_actions(merge_loops(only(triangle(64, 64))), parse_schedule("unroll i0 4")))
    end = ends(ast)["k0"]
    (rows,) = end.ranges
    assert end.bounds == (4, 64)
    assert rows.arg[0] == "i0"


def test_a_triangle_that_begins_at_a_variable() -> None:
    """Named regression: a prompt's block computed the scores of all keys; and a loop of variable size."""
    first = UOp(Ops.VARIABLE, dtypes.index, (), ("first", 0, 32))
    ast = merge_loops(only(triangle(64, 96)))
    (row,) = (n for n in ast.toposort() if n.op is Ops.RANGE and n.arg[0] == "i0")
    (seen,) = (n for n in ast.toposort() if n.op is Ops.LE)
    ast = substitute(ast, {seen: seen.replace(src=(seen.src[0], row + first))})
    for actions in ("", "unroll i0 4"):
        cut = apply_actions(ast, parse_schedule(actions))
        end = ends(trim_loops(cut))["k0"]
        assert first in end.toposort()
        assert end.bounds == ((4, 96) if actions else (1, 96))
        (loop,) = (n for n in cut.toposort() if n.op is Ops.RANGE and n.arg[0] == "k0")
        most = UOp(Ops.VARIABLE, dtypes.index, (), ("end", 64, 96))
        symbolic = substitute(cut, {loop: loop.replace(src=(most,))})
        assert {first, most} <= set(ends(trim_loops(symbolic))["k0"].toposort())


def test_a_kept_row_is_filled_as_far_as_it_is_read() -> None:
    ast = merge_loops(only(attention(data(0, 64, 4), data(1, 64, 4), data(2, 64, 4), is_causal=True)))
    found = ends(trim_loops(ast))
    assert all(not found[name].is_const for name in found if name.startswith("t"))


@pytest.mark.parametrize("schedule", [
    "split t1_0 16; vectorize i1 2",  # the end of the reading loop names a loop that does not fill the row
    "split k1 8; split t0_0 16; split k1 16",  # ... and a loop that is trimmed itself
])  # fmt: skip
def test_a_kept_row_in_loops_cut_twice_is_the_same(schedule: str) -> None:
    ast = merge_loops(only(attention(data(0, 22, 4), data(1, 22, 4), data(2, 22, 3), is_causal=True)))
    arrays = inputs(ast)
    close(run_on("LLVM", ast, arrays, parse_schedule(schedule)), run_ast(ast, arrays))


@pytest.mark.parametrize("shift", [-9, 0, 9])
def test_a_kept_row_read_as_far_as_a_column_goes(shift: int) -> None:
    """The sum over a row ends with the column of the result, which does not fill the row."""
    weights = softmax(matmul(data(0, 40, 4), data(1, 4, 33)))
    terms = elementwise(Ops.MUL, reshape(weights, (40, 33, 1)), reshape(data(2, 33, 21), (1, 33, 21)))
    seen = elementwise(Ops.LE, reshape(iota(33), (1, 33, 1)), reshape(iota(21) + shift, (1, 1, 21)))
    schedule = scheduled(total(elementwise(Ops.WHERE, seen, terms, const(F32, 0.0)), 1))
    for kernel in kernels(schedule):
        ast = merge_loops(kernel.ast)
        arrays = inputs(ast)
        close(run_on("LLVM", ast, arrays), run_ast(ast, arrays))


def counted(tiles: int = 5, rows: int = 32, terms: int = 64, columns: int = 48) -> UOp:
    """Products of tiles of rows, of each as many rows as a count in memory says."""
    x = reshape(data(0, tiles, rows, terms), (tiles, rows, 1, terms))
    w = reshape(data(1, tiles, columns, terms), (tiles, 1, columns, terms))
    product = total(elementwise(Ops.MUL, x, w), 3)
    counts = reshape(data(2, tiles, dtype=dtypes.int32), (tiles, 1, 1, 1))
    number = reshape(iota(rows), (1, rows, 1, 1)).cast(dtypes.int32)
    return elementwise(Ops.WHERE, elementwise(Ops.LT, number, counts), product, const(F32, 0.0))


@pytest.mark.parametrize("schedule", [
    "", "unroll i1 4", "unroll i1 5",
    "vectorize i2 16; unroll i1 4; order i0 i2 i1; stage 3 k0 i2.v; prefetch 4096 k0'",
])  # fmt: skip
def test_rows_behind_a_count_in_memory_are_not_computed(schedule: str) -> None:
    """Named regression: half of all rows of experts were computed for nobody, and a copied panel for none."""
    ast = merge_loops(only(counted()))
    arrays = inputs(ast)
    (counts,) = (n for n, param in enumerate(params(ast)) if param.dtype is dtypes.int32)
    arrays[counts][:] = [0, 32, 3, 17, -1]
    actions = parse_schedule(schedule)
    found = ends(trim_loops(apply_actions(ast, actions)))
    assert [name for name, end in found.items() if not end.is_const] == [
        "k0",
        *(["k0'"] if "stage" in schedule else []),
    ]
    close(run_on("LLVM", ast, arrays, actions), run_ast(ast, arrays))


@pytest.mark.parametrize("root", [
    total(data(0, 64, 64), 1),
    counted(terms=8),
    triangle(64, 8),  # too short to be worth a test
    total(elementwise(Ops.WHERE, elementwise(Ops.LE, reshape(iota(64), (1, 64)), reshape(iota(64), (64, 1))),
                      data(0, 64, 64), const(F32, 1.0)), 1),  # outside the gate something is added
])  # fmt: skip
def test_what_is_left_alone(root: UOp) -> None:
    ast = merge_loops(only(root))
    assert trim_loops(ast) is ast
