"""Output loops in parts: what is cut where, what is left alone, and the same results under all kinds of schedules."""

from __future__ import annotations

import pytest

from kernmill.compiler import Schedule, apply_actions, loop_paths, merge_loops, parse_schedule, partition_loops
from kernmill.ir import AxisKind, Ops, UOp, const, elementwise, iota, pad, permute, reshape, shrink
from tests.compiler.kernels import F32, close, data, inputs, matmul, only, run_ast, run_on, softmax


def joined(rows: int, left: int, right: int) -> UOp:
    """Two matrices side by side."""
    whole = left + right
    ours = elementwise(Ops.LT, reshape(iota(whole), (1, whole)), const(iota(1).dtype, left))
    first, second = pad(data(0, rows, left), ((0, 0), (0, right))), pad(data(1, rows, right), ((0, 0), (left, 0)))
    return elementwise(Ops.WHERE, ours, first, second)


def stacked(pieces: int, columns: int) -> UOp:
    """Vectors, from here and there, as the rows of a matrix."""
    rows, whole = reshape(iota(pieces), (pieces, 1)), const(F32, 0.0)
    for i in range(pieces):
        place = 7 * i % pieces
        vector = shrink(data(0, pieces, columns), ((place, place + 1), (0, columns)))
        piece = pad(vector, ((i, pieces - 1 - i), (0, 0)))
        whole = elementwise(Ops.WHERE, elementwise(Ops.LT, rows, const(iota(1).dtype, i)), whole, piece)
    return whole


def rolled(rows: int, columns: int) -> UOp:
    x = data(0, rows, columns)
    last, rest = shrink(x, ((rows - 1, rows), (0, columns))), shrink(x, ((0, rows - 1), (0, columns)))
    return elementwise(Ops.ADD, pad(last, ((0, rows - 1), (0, 0))), pad(rest, ((1, 0), (0, 0))))


def triangle(rows: int, columns: int) -> UOp:
    seen = elementwise(Ops.LE, reshape(iota(columns), (1, columns)), reshape(iota(rows), (rows, 1)))
    return elementwise(Ops.WHERE, seen, data(0, rows, columns), const(F32, 0.0))


def parted(root: UOp, schedule: str = "") -> UOp:
    return partition_loops(apply_actions(merge_loops(only(root)), parse_schedule(schedule)))


def gates(ast: UOp) -> list[UOp]:
    return [n.src[2] for n in ast.toposort() if n.op is Ops.INDEX and len(n.src) > 2]


KERNELS = {
    "joined": joined(5, 17, 20),
    "stacked": stacked(40, 24),
    "rolled": rolled(6, 19),
    "two rows": rolled(2, 40),
    "many rows": rolled(81, 9),
    "border": pad(data(0, 3, 7, 15), ((0, 0), (1, 2), (2, 1))),
    "tail": data(0, 1003) + 1.0,
    "turned": permute(data(0, 33, 37), (1, 0)) + 1.0,
    "triangle": triangle(20, 40),
    "one": pad(data(0, 1, 1), ((1, 1), (0, 1))),
    "softmax": softmax(data(0, 4, 37)),
    "product": matmul(data(0, 7, 5), data(1, 5, 19)),
}
SCHEDULES = ["", "thread i0", "vectorize i1 8", "vectorize i0 4; thread i0", "unroll i0 4; vectorize i1 8; thread i0",
             "split i0 4; thread i0", "split i1 8",
             "vectorize i0 2; split i0 4; thread i0", "order i1 i0; unroll i1 3; thread i1"]  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", KERNELS)
def test_the_results_are_the_same(name: str, schedule: str) -> None:
    ast = merge_loops(only(KERNELS[name]))
    plan, arrays = Schedule(ast), inputs(ast)
    for action in parse_schedule(schedule):
        plan.try_add(action.verb, *action.args)
    want = run_ast(ast, arrays)
    close(run_on("LLVM", ast, arrays, plan.actions), want)
    close(run_on("PYTHON", ast, arrays), want)


def test_between_the_parts_nothing_is_asked() -> None:
    assert not gates(parted(KERNELS["joined"]))
    assert not gates(parted(KERNELS["border"]))
    assert not gates(parted(KERNELS["two rows"], "thread i0"))


def test_each_of_many_joined_pieces_is_a_copy() -> None:
    """A stack of 32 states asked each element for its piece, 31 times."""
    ast = parted(stacked(100, 24), "vectorize i1 8; thread i0")
    assert len(ast.src) == 100
    assert not gates(ast)
    assert all(sum(n.op is Ops.LOAD for n in store.toposort()) == 1 for store in ast.src)


def test_a_block_in_which_an_answer_changes_keeps_its_masks() -> None:
    ast = parted(joined(5, 24, 24), "vectorize i1 16")
    assert len(ast.src) == 3
    assert [sum(len(n.src) > 2 for n in store.toposort() if n.op is Ops.INDEX) for store in ast.src] == [0, 2, 0]


def test_behind_the_last_block_the_first_is_found() -> None:
    """Blocks of blocks that leave some over have clamped numbers, in which no end of the first was seen: all had masks,
    and a `roll` of 100,000 rows of 3 took 5 times as long as PyTorch."""
    ast = parted(rolled(1000, 3), "vectorize i0 16; unroll i1 3; split i0 4; order i0 i0.s; thread i0")
    blocks = [r for gate in gates(ast) for r in gate.ranges if r.arg[1] == AxisKind.THREAD]
    assert all(int(r.src[0].arg) == 1 for r in blocks)
    shared = {r.arg[2]: int(r.src[0].arg) for r in ast.toposort() if r.op is Ops.RANGE and r.arg[1] == AxisKind.THREAD}
    assert shared == {0: 1, 1: 14, 15: 1}


def test_loops_of_a_part_keep_their_order() -> None:
    """Once the inner loops stood outside, so that rows were walked by columns and threads had no loop to share."""
    ast = parted(pad(data(0, 30, 40), ((1, 2), (0, 0))), "thread i0")
    paths = [path for path in loop_paths(ast).values() if len(path) > 1]
    assert paths
    assert all(path[0].arg[1] == AxisKind.THREAD for path in paths)


def test_what_would_be_stored_nowhere_is_gone() -> None:
    ast = parted(data(0, 65) + 1.0, "split i0 32")
    assert sorted(int(r.src[0].arg) for r in ast.toposort() if r.op is Ops.RANGE) == [2, 32]
    assert len(ast.src) == 2


@pytest.mark.parametrize("root", [
    data(0, 64) + 1.0,
    matmul(data(0, 7, 5), data(1, 5, 19)),  # a sum inside of all loops
    triangle(40, 40),  # whose end moves with each row
])  # fmt: skip
def test_what_is_left_alone(root: UOp) -> None:
    ast = apply_actions(merge_loops(only(root)), parse_schedule("unroll i0 2"))
    assert partition_loops(ast) is ast


def test_only_the_loops_inside_a_sum_are_cut() -> None:
    ast = parted(softmax(data(0, 5, 37)), "split i0 2; vectorize i1 16")
    new = [str(r.arg[0]) for r in ast.toposort() if r.op is Ops.RANGE and ".p" in str(r.arg[0])]
    assert new
    assert all(name.startswith("i1.p") for name in new)


def test_not_too_many_parts() -> None:
    """A table of 40 rows, each of its own: the code would be that long."""
    rows = iota(40)
    x: UOp = const(rows.dtype, 0)
    for row in range(40):
        x = elementwise(Ops.WHERE, elementwise(Ops.LT, rows, const(rows.dtype, row)), const(rows.dtype, row * row), x)
    ast = merge_loops(only(elementwise(Ops.ADD, data(0, 40), x.cast(F32))))
    assert partition_loops(ast) is ast
