"""Nodes that get memory before fusion decides anything."""

from __future__ import annotations

from kernmill.ir import Ops, UOp, assign, permute
from tests.compiler.graph.drafts import draft_after
from tests.compiler.kernels import data, relu

X = data(0, 4, 6)


def test_results_and_what_the_user_stored() -> None:
    stored = relu(X)
    kept = UOp(Ops.CONTIGUOUS, X.dtype, (stored,))
    result = kept + 1.0
    found = draft_after("choose_stored", result).stored
    assert {*found.nodes} == {result, stored}
    assert found.results == [result]


def test_a_result_that_is_data_needs_no_memory() -> None:
    assert not draft_after("choose_stored", X).stored.nodes


def test_a_copy_and_its_source() -> None:
    source = relu(X)
    copy = UOp(Ops.COPY, X.dtype, (source,), "CL")
    assert {*draft_after("choose_stored", copy + 1.0).stored.nodes} >= {source, copy}


def test_assignments_and_views() -> None:
    written = assign(X, X * 2.0)
    turned = permute(relu(X), (1, 0))
    assert {*draft_after("choose_stored", written, turned).stored.nodes} == {written, turned}
