"""Assignments that may overwrite their old value."""

from __future__ import annotations

from kernmill.compiler import choose_in_place
from kernmill.ir import Ops, assign
from tests.compiler.graph.drafts import draft_after
from tests.compiler.kernels import data

X = data(0, 4, 6)


def test_a_slot_that_nobody_else_reads_is_overwritten() -> None:
    written = assign(X, X * 2.0)
    assert [*draft_after("choose_in_place", written, in_place=[0]).targets] == [written]
    assert not draft_after("choose_in_place", written).targets


def test_one_of_two_assignments_to_one_value() -> None:
    one, other = assign(X, X * 2.0), assign(X, X * 3.0)
    assert len(draft_after("choose_in_place", one, other, in_place=[0]).targets) == 1


def test_an_assignment_to_an_assigned_value_writes_the_same_memory() -> None:
    first = assign(X, X * 2.0)
    second = assign(first, first + 1.0)
    draft = draft_after("choose_in_place", second, in_place=[0])
    assert set(draft.targets) == {first}  # its value is read twice: by the sum, and as the old value
    assert {target.op for target in draft.targets.values()} == {Ops.PARAM}


def test_a_refused_one_is_left_out() -> None:
    written = assign(X, X * 2.0)
    assert choose_in_place([written], {0}, {written}) == {}
