"""Copies that later runs use again."""

from __future__ import annotations

from kernmill.ir import Copy, GraphPlan, Ops, UOp, assign
from tests.compiler.graph.drafts import draft_after
from tests.compiler.kernels import data

X, Y = data(0, 4), data(1, 4)


def kept(plan: GraphPlan) -> list[bool]:
    return [plan.buffers[item.target].is_kept for item in plan.items if isinstance(item, Copy)]


def copy(node: UOp) -> UOp:
    return UOp(Ops.COPY, node.dtype, (node,), "CL")


def test_the_copy_of_an_input_is_kept() -> None:
    assert kept(draft_after("keep_copies", copy(X) + 1.0).plan) == [True]


def test_a_copy_that_is_a_result_is_not() -> None:
    assert kept(draft_after("keep_copies", copy(X)).plan) == [False]


def test_the_copy_of_a_computed_value_is_not() -> None:
    assert kept(draft_after("keep_copies", copy(X * 2.0) + 1.0).plan) == [False]


def test_an_input_that_is_overwritten() -> None:
    roots = [copy(X) + 1.0, assign(X, Y)]
    assert kept(draft_after("keep_copies", *roots, in_place=[0]).plan) == [False]
