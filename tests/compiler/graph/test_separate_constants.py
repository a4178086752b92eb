"""Results of constants alone in graphs over several devices: computed once, and copied to whoever reads them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from kernmill import Context, Tensor
from kernmill.compiler import Draft, plan_graph
from kernmill.ir import Copy, Ops, UOp, const, dtypes, elementwise, expand, reshape

Far = Callable[..., str]


def constant(number: float) -> UOp:
    return expand(reshape(const(dtypes.float32, number), (1,)), (4,))


def test_one_copy_for_each_device_that_reads_it() -> None:
    x, y = (UOp(Ops.PARAM, dtypes.float32, (), (slot, 4)) for slot in range(2))
    made = UOp(Ops.DETACH, dtypes.float32, (constant(3.0),), 1)
    roots = [made, elementwise(Ops.ADD, x, made), elementwise(Ops.MUL, y, elementwise(Ops.ADD, made, constant(1.0)))]
    plan = plan_graph(Draft(roots, ["B", "C"], frozenset(), "A")).plan
    copies = [(plan.buffers[i.source].device, plan.buffers[i.target].device) for i in plan.items if isinstance(i, Copy)]
    assert sorted(copies) == [("A", "B"), ("A", "C")]


def test_on_one_device_nothing_is_copied() -> None:
    x = UOp(Ops.PARAM, dtypes.float32, (), (0, 4))
    made = UOp(Ops.DETACH, dtypes.float32, (constant(3.0),), 1)
    plan = plan_graph(Draft([made, elementwise(Ops.ADD, x, made)], ["A"], frozenset(), "A")).plan
    assert not [item for item in plan.items if isinstance(item, Copy)]


@pytest.mark.parametrize(("is_leaf", "is_listed"), [*itertools.product([False, True], repeat=2)])
def test_a_constant_that_needs_a_gradient_is_realized_with_two_far_devices(
    far: Far, is_leaf: bool, is_listed: bool
) -> None:
    """Its one buffer was on the default device, and kernels of the others read it: InternalError."""
    one, other = far(0), far(1)
    with Context(DEVICE=",".join(["LLVM", one, other]) if is_listed else "LLVM"):
        ones = Tensor.ones(2, 3, requires_grad=is_leaf)
        x, y = Tensor([[1.0, 2, 3]], device=one).realize(), Tensor([[4.0, 5, 6]], device=other).realize()
        here, there = x + ones, (y * (ones + 1)).sum(0)
        Tensor.realize(ones, here, there)
        assert (here.tolist(), there.tolist(), ones.tolist()) == ([[2, 3, 4]] * 2, [16, 20, 24], [[1, 1, 1]] * 2)
