"""Kernels in an order in which they can run."""

from __future__ import annotations

from itertools import pairwise

from kernmill.ir import Copy, Kernel, Ops, UOp, assign, expand
from tests.compiler.graph.drafts import draft_after
from tests.compiler.kernels import F32, data, kernels, matmul, relu, scheduled, total

X = data(0, 4, 4)


def test_producers_come_first() -> None:
    first = matmul(X, data(1, 4, 4))
    draft = draft_after("order_kernels", matmul(relu(first), data(2, 4, 4)))
    written: set[int] = set()
    for item in draft.ordered.items:
        assert isinstance(item, Kernel)
        read = {n for n in item.buffers if draft.built.unordered.buffers[n].slot is None} - {*item.outputs}
        assert read <= written
        written |= {*item.outputs}


def test_readers_of_an_old_value_run_before_it_is_overwritten() -> None:
    draft = draft_after("order_kernels", assign(X, data(1, 4, 4)), total(X, 1), in_place=[0])
    names = [item.name for item in draft.ordered.items if isinstance(item, Kernel)]
    assert [name.split("_")[0] for name in names] == ["sum", "map"]
    assert not draft.ordered.is_stuck


def test_kernels_that_need_each_other_first() -> None:
    y = data(1, 4, 4)
    assert draft_after("order_kernels", assign(X, y), assign(y, X), in_place=[0, 1]).ordered.is_stuck


def test_kernels_of_one_device_run_in_a_row() -> None:
    left = [relu(data(slot, 4, 4)) for slot in (0, 2)]
    right = [UOp(Ops.CONTIGUOUS, X.dtype, (relu(data(slot, 4, 4)),)) for slot in (1, 3)]
    draft = draft_after("order_kernels", left[0], right[0], left[1], right[1], devices=["LLVM", "CL"] * 2)
    devices = [item.device for item in draft.ordered.items if isinstance(item, Kernel)]
    assert sum(a != b for a, b in pairwise(devices)) == 1


def test_a_copy_is_an_item_and_nothing_is_launched_for_no_values() -> None:
    copy = UOp(Ops.COPY, X.dtype, (relu(X),), "CL")
    assert any(isinstance(item, Copy) for item in draft_after("order_kernels", copy + 1.0).ordered.items)
    assert draft_after("order_kernels", expand(data(0, 1, 4), (0, 4)) + 1.0).ordered.items == []


def test_the_last_reader_of_a_large_value_runs_at_once() -> None:
    value, sums = data(0, 8, 8), list[UOp]()
    for slot in range(1, 5):
        value = matmul(value, data(slot, 8, 8))
        sums.append(total(value, 0, 1))
    order = kernels(scheduled(value, *sums))
    places = {kernel.outputs[0]: place for place, kernel in enumerate(order)}
    found = [place for place, kernel in enumerate(order) if "1_k8x8" in kernel.name]
    assert len(order) == 8
    for place in found[:-1]:  # right after the layer that is the other reader
        read = next(n for n in order[place].buffers if n in places and n not in order[place].outputs)
        assert order[place - 1].buffers.count(read) == 1


def test_readers_through_a_wait_run_later_and_read_the_same_memory() -> None:
    x = data(0, 8, 8)
    late = matmul(x, data(1, 8, 4))
    at_once = matmul(x, data(2, 8, 8))
    waiting = matmul(UOp(Ops.WAIT, F32, (x, late)), data(2, 8, 8))
    before = kernels(scheduled(at_once, late))
    after = kernels(scheduled(waiting, late))
    assert [kernel.name for kernel in before] == ["sum_8x8_k8", "sum_8x4_k8"]
    assert [kernel.name for kernel in after] == ["sum_8x4_k8", "sum_8x8_k8"]
    assert before[0].ast is after[1].ast
