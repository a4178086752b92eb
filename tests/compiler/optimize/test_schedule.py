"""A schedule under construction: what each step makes is known by name."""

from __future__ import annotations

import pytest

from kernmill.compiler import Schedule, apply_actions, merge_loops, show_schedule
from kernmill.ir import CompileError, UOp, window
from tests.compiler.kernels import data, matmul, only, total


def product() -> UOp:
    return merge_loops(only(matmul(data(0, 32, 64), data(1, 64, 96))))


def test_the_kernel_is_that_of_its_actions() -> None:
    ast = product()
    schedule = Schedule(ast)
    assert schedule.cut("vectorize", "i1", 16) == ["i1.v"]
    assert schedule.cut("unroll", "i1", 6) == ["i1.u"]
    assert schedule.cut("unroll", "i0", 1) == []
    assert (schedule.unrolled_loops("i1"), schedule.unrolled_size("i1")) == (["i1.u", "i1.v"], 96)
    assert (schedule.unrolled_loops("i0"), schedule.unrolled_size("i0")) == ([], 1)
    schedule.order(["i1", "i0"])  # i1 is used up
    assert show_schedule(schedule.actions).splitlines() == ["vectorize i1 16", "unroll i1 6", "order i0"]
    assert schedule.ast is apply_actions(ast, schedule.actions)
    assert schedule.loops == ("i0",)


def test_a_second_cut_has_a_name_of_its_own() -> None:
    schedule = Schedule(product())
    assert schedule.cut("split", "i0", 8) == ["i0.s"]
    assert schedule.cut("split", "i0", 2) == ["i0.ss"]
    assert schedule.cut("split", "i0.s", 4) == ["i0.s.s"]


def test_copies_of_loops_are_named_by_the_loops() -> None:
    schedule = Schedule(product())
    assert schedule.add("stage", 2, "k0", "i1") == {"k0": "k0'", "i1": "i1'"}
    assert schedule.add("stage", 1, "k0") == {"k0": "k0''"}
    assert schedule.add("accumulate", "k0", 16) == {"k0": "k0.s"}


def test_loops_on_the_same_axis_share_a_copy() -> None:
    schedule = Schedule(merge_loops(only(total(window(data(0, 4, 40), 1, 5), 2))))
    (along,) = schedule.loops[-1:]
    copies = schedule.add("stage", 1, along, "k0")
    assert copies[along] == copies["k0"] == f"{along}'"


def test_what_does_not_fit_changes_nothing() -> None:
    schedule = Schedule(product())
    before = schedule.ast
    assert not schedule.try_add("thread", "k0")
    assert schedule.try_add("unroll", "i0", 1)
    with pytest.raises(CompileError, match="thread k0 does not fit: k0 is not an output loop"):
        schedule.add("thread", "k0")
    assert (schedule.ast, schedule.actions) == (before, [])
