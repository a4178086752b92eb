"""Prefetches that move: every line of the next panel is asked for, by the loops that read this one."""

from __future__ import annotations

import numpy as np
import pytest

from kernmill.compiler import merge_loops, parse_schedule
from kernmill.ir import Ops, UOp, closed_ranges, dtypes, index_const, simplify, substitute, take
from tests.compiler.kernels import VECTORS, close, data, inputs, lowered, matmul, only, run_ast, run_on
from tests.compiler.passes import after

STAGED = (
    "vectorize i1 16; unroll i1 2; unroll i0 4; accumulate k0 16; split i1 8; order i1 k0 i1.s i0; "
    "stage 2 k0.s i1.u i1.v"
)
AHEAD = 16 * 4096 * 4
TILES = {4: 1, 8: 2, 12: 3, 20: 5, 18: 5}  # rows: tiles of four


def product(rows: int, columns: int = 4096) -> UOp:
    return merge_loops(only(matmul(data(0, rows, 80), data(1, 80, columns))))


def asks(ast: UOp) -> list[UOp]:
    return [node for node in ast.toposort() if node.op is Ops.PREFETCH]


def lines(place: UOp, loops: list[UOp]) -> list[int]:
    """The lines of `place` over all iterations of the loops, those around at their start."""
    table = {r: index_const(0) for r in place.ranges if r not in loops}
    found = [simplify(substitute(place, table))]
    for loop in loops:
        found = [simplify(substitute(p, {loop: index_const(i)})) for p in found for i in range(loop.src[0].arg)]
    return [int(p.arg) * 4 // 64 for p in found]


@pytest.mark.parametrize("rows", TILES)
def test_every_line_of_a_panel_is_asked_for(rows: int) -> None:
    schedule = f"{STAGED}; prefetch {AHEAD}".replace("i1.s i0;", "i1.s;" if rows == 4 else "i1.s i0;")
    plain, moved = (after(name, product(rows), schedule, VECTORS) for name in ("lower_reduces", "insert_prefetches"))
    (panel,) = [n for n in plain.toposort() if n.op is Ops.AFTER and n.src[0].op is Ops.LOCAL and closed_ranges(n)]
    loads = [n for n in panel.toposort() if n.op is Ops.LOAD and n.arg is not None]
    (matrix,) = {load.src[0].src[0] for load in loads}
    wanted = sorted(line for load in loads for line in lines(load.src[0].src[1], list(closed_ranges(panel))))
    assert len(wanted) == 32
    found = asks(moved)
    assert len(found) == (2 if TILES[rows] == 1 else 1)
    assert all(n.arg is None for n in moved.toposort() if n.op is Ops.LOAD and n.src[0].src[0] is matrix)
    asked: list[int] = []
    for ask in found:
        assert ask.arg == AHEAD
        place = ask.src[0].src[1]
        inner = [r for r in place.ranges if r not in panel.ranges]
        asked += lines(place, inner)
    assert sorted(set(asked)) == wanted


@pytest.mark.parametrize(("rows", "columns"), [(8, 4096), (18, 4096), (9, 4100), (5, 4090)])
def test_results_stay(rows: int, columns: int) -> None:
    ast = product(rows, columns)
    arrays = inputs(ast)
    close(run_on("LLVM", ast, arrays, parse_schedule(f"{STAGED}; prefetch {AHEAD}")), run_ast(ast, arrays))


def test_a_copy_that_is_read_by_another_step_keeps_its_prefetches() -> None:
    schedule = f"{STAGED}; unroll k0.s' 4; prefetch {AHEAD}"
    moved = after("insert_prefetches", product(8), schedule, VECTORS)
    assert not asks(moved)
    assert any(node.arg == (AHEAD, 1) for node in moved.toposort() if node.op is Ops.LOAD)


def test_loads_outside_of_copies_keep_theirs() -> None:
    moved = after("insert_prefetches", product(8), "vectorize i1 16; prefetch 4096", VECTORS)
    assert not asks(moved)
    assert any(node.arg == (4096, 1) for node in moved.toposort() if node.op is Ops.LOAD)


@pytest.mark.parametrize(("ahead", "rows"), [(1, 1), (384, 1), (385, 2), (1 << 30, 40)])
def test_rows_that_are_looked_up_are_asked_for_by_a_later_place(ahead: int, rows: int) -> None:
    """And not by what lies behind a row; past the last row it is the last one that is asked for."""
    ast = only(take(data(0, 4096, 96), data(1, 40, dtype=dtypes.int64), 0))
    moved = after("insert_prefetches", ast, f"vectorize i1 16; unroll i1 2; prefetch {ahead}", VECTORS)
    assert all(node.arg is None for node in moved.toposort() if node.op is Ops.LOAD)
    found = asks(moved)
    assert len(found) == 2
    for ask in found:
        (lookup,) = [node.src[0].src[1] for node in ask.toposort() if node.op is Ops.LOAD]
        (loop,) = lookup.ranges
        places = [simplify(substitute(lookup, {loop: index_const(i)})).arg for i in range(40)]
        assert places == [min(i + rows, 39) for i in range(40)]


@pytest.mark.parametrize(
    "schedule", ["vectorize i1 16; unroll i0 4", "unroll i1 4; split i0 8; thread i0", "vectorize i0 8"]
)
def test_looked_up_rows_stay(schedule: str) -> None:
    ast = only(take(data(0, 4096, 96), data(1, 40, dtype=dtypes.int64), 0))
    arrays = inputs(ast)
    arrays[2][:] = np.random.default_rng(1).integers(0, 4096, 40)
    close(run_on("LLVM", ast, arrays, parse_schedule(f"{schedule}; prefetch 999")), run_ast(ast, arrays))


def test_the_linear_form_is_legal() -> None:
    uops = lowered(product(8), VECTORS, parse_schedule(f"{STAGED}; prefetch {AHEAD}"), is_checked=True)
    assert sum(u.op is Ops.PREFETCH for u in uops) == 1


TILES_OF_ROWS = "vectorize i1 16; unroll i1 2; unroll i0 6"


def long_product(rows: int, terms: int = 64, columns: int = 64) -> UOp:
    return merge_loops(only(matmul(data(0, rows, terms), data(1, terms, columns))))


@pytest.mark.parametrize(("terms", "together"), [(64, 1), (80, 1), (128, 4)])
def test_the_rows_of_the_next_tile_are_asked_for_by_this_one(terms: int, together: int) -> None:
    schedule = f"{TILES_OF_ROWS}; unroll k0 {together}; prefetch {24 * terms} k0".replace("unroll k0 1; ", "")
    moved = after("insert_prefetches", long_product(6000, terms), schedule, VECTORS)
    found = asks(moved)
    assert found
    asked: set[int] = set()
    for ask in found:
        place = ask.src[0].src[1]
        asked.update(lines(place, [r for r in place.ranges if r.arg[0] == "k0"]))
    assert sorted(asked) == list(range(-(-24 * terms // 64)))
    assert {ask.arg for ask in found} == {24 * terms}
    assert all(node.arg is None for node in moved.toposort() if node.op is Ops.LOAD and node.dtype.lanes == 1)


def test_the_lines_of_results_are_asked_for_by_their_sums() -> None:
    moved = after("insert_prefetches", long_product(60), f"{TILES_OF_ROWS}; prefetchw", VECTORS)
    (ask,) = asks(moved)
    assert ask.arg is None
    place = ask.src[0].src[1]
    assert lines(place, [r for r in place.ranges if r.arg[0] == "k0"]) == sorted(
        line for n in range(64) for line in [n * 12 // 64 // 2 * 4 + n * 12 // 64 % 2]
    )
    assert all(node.arg is None for node in moved.toposort() if node.op is Ops.STORE)


def test_results_in_uneven_lines_are_not_asked_for() -> None:
    assert not asks(after("insert_prefetches", long_product(60, columns=56), f"{TILES_OF_ROWS}; prefetchw", VECTORS))


@pytest.mark.parametrize(("rows", "terms", "columns"), [(4099, 64, 64), (6, 80, 32), (4501, 67, 50), (5, 67, 50)])
def test_what_tiles_ask_for_changes_no_result(rows: int, terms: int, columns: int) -> None:
    ast = long_product(rows, terms, columns)
    arrays = inputs(ast)
    schedule = parse_schedule(f"{TILES_OF_ROWS}; prefetchw; prefetch {24 * terms} k0")
    assert lowered(ast, VECTORS, schedule, is_checked=True)
    close(run_on("LLVM", ast, arrays, schedule), run_ast(ast, arrays))


def test_results_that_lie_apart_are_not_claimed() -> None:
    ast = merge_loops(only(matmul(data(0, 37, 70), data(1, 70, 45))))
    moved = after("insert_prefetches", ast, "vectorize i0 8; prefetchw", VECTORS)
    assert not asks(moved)
    arrays = inputs(ast)
    close(run_on("LLVM", ast, arrays, parse_schedule("vectorize i0 8; prefetchw")), run_ast(ast, arrays))
