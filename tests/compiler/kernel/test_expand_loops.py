"""UNROLL and RFACTOR loops become copies."""

from __future__ import annotations

import pytest

from kernmill.ir import AxisKind, CompileError, Ops, UOp
from tests.compiler.kernels import close, data, inputs, matmul, only, run_ast, small_kernels, total
from tests.compiler.passes import after

KERNELS = small_kernels()
SCHEDULES = ["unroll i0 2", "unroll i0 4", "unroll i0 32", "split i0 3; unroll i0.s 3"]
REDUCED = [
    "unroll k0 3",
    "rfactor k0 2",
    "rfactor k0 3",
    "rfactor k0 4; unroll k0 2",
    "unroll i0 2; rfactor k0 5",
    "rfactor k0 32",
    "rfactor k0 7",
]


def count(ast: UOp, op: object) -> int:
    return sum(node.op is op for node in ast.toposort())


def kinds(ast: UOp) -> set[AxisKind]:
    return {node.arg[1] for node in ast.toposort() if node.op is Ops.RANGE}


@pytest.mark.parametrize("schedule", [*SCHEDULES, *REDUCED])
@pytest.mark.parametrize("name", KERNELS)
def test_copies_mean_the_same(name: str, schedule: str) -> None:
    ast = KERNELS[name]
    arrays = inputs(ast)
    try:
        expanded = after("expand_loops", ast, schedule)
    except CompileError:
        pytest.skip("there is no such loop, or it is used up")
    assert not kinds(expanded) & {AxisKind.UNROLL, AxisKind.RFACTOR}
    close(run_ast(expanded, arrays), run_ast(ast, arrays))


def test_copies_share_what_does_not_change() -> None:
    """A 3 x 4 tile of a product loads 3 + 4 values, not 24."""
    tile = after("expand_loops", only(matmul(data(0, 6, 9), data(1, 9, 8))), "unroll i0 3; unroll i1 4")
    assert count(tile, Ops.LOAD) == 7
    assert count(tile, Ops.STORE) == 12
    assert count(tile, Ops.REDUCE) == 12


def test_unrolled_reductions_keep_one_accumulator() -> None:
    ast = after("expand_loops", only(total(data(0, 4, 12), 1)), "unroll k0 3")
    (reduce,) = [n for n in ast.toposort() if n.op is Ops.REDUCE]
    assert reduce.arg == (Ops.ADD, 3)


def test_groups_have_accumulators_of_their_own() -> None:
    ast = after("expand_loops", only(total(data(0, 4, 12), 1)), "rfactor k0 3")
    assert count(ast, Ops.REDUCE) == 3


def test_copies_behind_the_end_are_left_out() -> None:
    """A group larger than its loop once left sums of nothing over the other loops, which no loop could hold."""
    ast = only(total(data(0, 4, 3, 5), 1, 2))
    arrays = inputs(ast)
    expanded = after("expand_loops", ast, "rfactor k0 4")
    close(run_ast(expanded, arrays), run_ast(ast, arrays))
    after("lower_index", only(total(data(0, 6, 19), 0)), "split k0 5; rfactor k0 4")
