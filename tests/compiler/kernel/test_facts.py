"""What passes ask of any kernel."""

from __future__ import annotations

import pytest

from kernmill.compiler import KernelInfo, gated, iterations, masked, mean_iterations, neutral_element, slot_of, step_of
from kernmill.ir import AxisKind, DType, Op, Ops, UOp, apply_op, const, dtypes, index_const, make_range
from tests.compiler.kernels import data, only


def test_a_kernel_knows_its_name_and_the_order_of_its_loops() -> None:
    ast = only(data(0, 4, 5) + 1.0)
    assert ast.arg == KernelInfo("map_4x5", ("i0", "i1"))
    assert ast.arg.actions == ()


def test_iterations_are_the_sizes_of_loops() -> None:
    loops = [node for node in only(data(0, 4, 5) + 1.0).toposort() if node.op is Ops.RANGE]
    assert sorted(iterations(loop) for loop in loops) == [4, 5]


def test_a_loop_inside_a_triangle_runs_half_as_often_on_average() -> None:
    """Named regression: causal attention was estimated at five times its time, and its candidates in no order."""
    row = make_range("i0", 64, AxisKind.LOOP)
    inner = make_range("k0", row + 1, AxisKind.REDUCE)
    assert iterations(inner) == 64
    assert 31 < mean_iterations(inner) < 34
    assert mean_iterations(row) == 64
    empty = make_range("k1", row - row, AxisKind.REDUCE)
    assert mean_iterations(empty) > 0


def test_places_have_steps_and_gates() -> None:
    loops = {str(n.arg[0]): n for n in only(data(0, 4, 5) + 1.0).toposort() if n.op is Ops.RANGE}
    row, column = loops["i0"], loops["i1"]
    memory = UOp(Ops.PARAM, dtypes.float32, (), (0, 20))
    place = UOp(Ops.INDEX, dtypes.float32, (memory, (row * 5).alu(Ops.MIN, 15) + column))
    assert [step_of(place.src[1], loop) for loop in (row, column)] == [5, 1]
    assert gated(place, None) is place
    assert place.gate is None
    assert gated(place, row < 3).gate is (row < 3)
    assert gated(gated(place, row < 3), column < 2).gate is (row < 3) & (column < 2)
    assert index_const(1).gate is None


@pytest.mark.parametrize("op", [Ops.ADD, Ops.MUL, Ops.MAX, Ops.MIN, Ops.AND, Ops.OR, Ops.XOR], ids=str)
@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.uint16, dtypes.bool], ids=str)
def test_a_neutral_element_changes_nothing(op: Op, dtype: DType) -> None:
    one = const(dtype, 1)
    assert apply_op(one.alu(op, one), (1, neutral_element(op, one).arg)) == 1


@pytest.mark.parametrize("op", [Ops.ADD, Ops.MAX], ids=str)
def test_a_masked_term_changes_nothing_outside(op: Op) -> None:
    x = UOp(Ops.VARIABLE, dtypes.int32, (), ("x", 0, 9))
    seen, neutral = x < 5, neutral_element(op, x)
    assert masked(seen.where(x, neutral), op) == (seen, x)
    assert masked(seen.where(x, x.like(1)), op) == (None, seen.where(x, x.like(1)))
    assert masked(x, op) == (None, x)


def test_an_access_has_the_number_of_its_buffer() -> None:
    for memory, slot in (
        (UOp(Ops.PARAM, dtypes.float32, (), (3, 8)), 3),
        (UOp(Ops.LOCAL, dtypes.float32, (), ("a", 8)), None),
    ):
        place = UOp(Ops.INDEX, dtypes.float32, (memory, index_const(0)))
        assert slot_of(UOp(Ops.LOAD, dtypes.float32, (place,))) == slot
