"""Assignments in place whose effect would be visible."""

from __future__ import annotations

from kernmill.ir import assign, permute
from tests.compiler.graph.drafts import draft_after
from tests.compiler.kernels import data, total

X, Y = data(0, 4, 4), data(1, 4, 4)


def test_own_positions_only() -> None:
    assert not draft_after("find_hazards", assign(X, X * 2.0), in_place=[0]).refused


def test_a_transpose_of_itself_reads_what_was_written() -> None:
    written = assign(X, permute(X, (1, 0)))
    assert draft_after("find_hazards", written, in_place=[0]).refused == {written}


def test_an_old_value_that_is_a_result() -> None:
    written = assign(X, Y)
    assert draft_after("find_hazards", written, X, in_place=[0]).refused == {written}


def test_a_reader_that_runs_before_is_no_clash() -> None:
    assert not draft_after("find_hazards", assign(X, Y), total(X, 1), in_place=[0]).refused


def test_two_tensors_that_are_exchanged() -> None:
    assert len(draft_after("find_hazards", assign(X, Y), assign(Y, X), in_place=[0, 1]).refused) == 1
