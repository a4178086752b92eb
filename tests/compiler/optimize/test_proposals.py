"""Proposals: what fits each verb is among them, what cannot be is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernmill.compiler import apply_actions, merge_loops, parse_schedule, proposals
from kernmill.ir import CompileError, UOp, dtypes
from tests.compiler.kernels import SCALARS, VECTORS, convolution, data, kernels, matmul, only, scheduled, softmax


@pytest.fixture(autouse=True)
def on_device() -> None:
    """Nothing runs."""


def product(schedule: str = "") -> UOp:
    (kernel,) = kernels(scheduled(matmul(data(0, 64, 96), data(1, 96, 48))))
    return apply_actions(merge_loops(kernel.ast), parse_schedule(schedule))


def test_cuts_are_at_most_as_large_as_the_loop() -> None:
    ast = product()
    assert ("k0", "64") in list(proposals.splits(ast, VECTORS))
    assert not [
        args for args in proposals.splits(ast, VECTORS) if int(args[1]) >= {"i0": 64, "i1": 48, "k0": 96}[args[0]]
    ]
    assert {args[0] for args in proposals.rfactors(ast, VECTORS)} == {"k0"}
    assert {args[0] for args in proposals.unrolls(ast, VECTORS)} == {"i0", "i1", "k0"}
    assert set(proposals.parts(ast, VECTORS)) == {("i0", "2"), ("i0", "4"), ("i1", "2"), ("i1", "4")}


def test_lanes_are_those_of_the_target() -> None:
    assert {args[1] for args in proposals.vectors(product(), VECTORS)} == {"8", "16", "32"}
    assert not list(proposals.vectors(product(), SCALARS))


def test_threads_only_where_there_are_some() -> None:
    assert proposals.threads(product(), VECTORS) == [("i0",), ("i1",)]
    assert not proposals.threads(product(), SCALARS)


def test_an_order_moves_one_loop() -> None:
    assert proposals.orders(product(), VECTORS) == [("i1", "i0")]
    found = list(proposals.orders(product("split i0 8"), VECTORS))
    assert ("i0", "i0.s", "i1") not in found
    assert ("i1", "i0", "i0.s") in found
    assert len(found) == 4


def test_a_panel_is_what_the_inner_loops_read() -> None:
    ast = product("vectorize i1 16; unroll i0 4")
    assert set(proposals.stages(ast, VECTORS)) == {("1", "k0", "i0.u"), ("2", "k0", "i1.v")}
    assert ("1", "i0.s", "k0") in proposals.stages(product("split i0 8"), VECTORS)


def test_bytes_are_moved_with_the_sums_of_the_other_factor() -> None:
    left, right = (data(n, 8, 8, dtype=dtypes.int8).cast(dtypes.int32) for n in (0, 1))
    assert proposals.biases(merge_loops(only(matmul(left, right))), VECTORS) == [("1", "i1"), ("2", "i0")]
    assert not list(proposals.biases(product(), VECTORS))


def test_results_go_around_the_caches_once_and_only_where_these_do_not_hold_them() -> None:
    small = replace(VECTORS, l2_bytes=64 * 48 * 4 // 8 - 1)
    assert proposals.streams(product(), small) == [()]
    assert not proposals.streams(product("stream"), small)
    assert not proposals.streams(product(), replace(small, l2_bytes=small.l2_bytes + 1))
    assert proposals.once(product(), VECTORS) == [()]


def test_claimed_results_do_not_go_around_the_caches() -> None:
    ast = merge_loops(only(matmul(data(0, 8, 16), data(1, 16, 32))))
    with pytest.raises(CompileError, match="already have `prefetchw`, which keeps them in the caches"):
        apply_actions(ast, parse_schedule("prefetchw; stream"))


def test_every_loop_of_a_sum_but_the_last_may_become_the_innermost() -> None:
    ast = merge_loops(only(convolution(data(0, 2, 3, 9, 9), data(1, 4, 3, 3, 3))))
    found = list(proposals.inner(ast, VECTORS))
    assert len(found) == 2
    for (name,) in found:
        assert apply_actions(ast, parse_schedule(f"inner {name}")) is not ast


def test_a_row_that_is_kept_may_lie_in_the_output() -> None:
    assert proposals.rows(merge_loops(only(softmax(data(0, 16, 64)))), VECTORS) == [("t0_0",)]
    assert not proposals.rows(product(), VECTORS)


def test_later_arguments_are_made_to_fit() -> None:
    ast = product("split i0 8")
    assert proposals.fit_order(ast, ("i1", "i0")) == ("i1", "i0.s", "i0")
    assert proposals.fit_order(product("unroll i0 64"), ("i1", "i0")) is None
    assert proposals.fit_thread(product("unroll i0 64"), ("i0",)) == ("i1",)
    assert proposals.fit_stage(ast, ("2", "k0", "i1.v")) == ("2", "k0")
    assert proposals.fit_stage(ast, ("2", "i1.v")) is None
