"""Order, in-place assignment, TAKE, CHECK, copies and empty results."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import numpy as np
import pytest

from kernmill.ir import (
    Copy,
    Kernel,
    Ops,
    UOp,
    assign,
    const,
    current_origin,
    dtypes,
    elementwise,
    permute,
    reshape,
    shrink,
    static,
    strided,
    take,
)
from tests.compiler.kernels import (
    F32,
    Array,
    close,
    data,
    kernels,
    matmul,
    names,
    only,
    run_schedule,
    scheduled,
    softmax,
    total,
)

X, Y = data(0, 6, 8), data(1, 6, 8)
Region = tuple[tuple[int, int, int], ...]
ALL_BUT_ONE: Region = ((1, 6, 1), (0, 8, 1))


def numbers(*counts: int) -> list[Array]:
    return [np.random.default_rng(n).uniform(-2, 2, count).astype(np.float32) for n, count in enumerate(counts)]


def is_in_place(*roots: UOp, slot: int = 0) -> bool:
    """Whether some kernel writes input `slot`."""
    schedule = scheduled(*roots, in_place=(0, 1))
    return any(schedule.buffers[number].slot == slot for kernel in kernels(schedule) for number in kernel.outputs)


# --- assignment ------------------------------------------------------------------------------------------------------
IN_PLACE = {
    "at its own place": assign(X, X + 1.0),
    "from elsewhere": assign(X, Y * 2.0),
    "a number": assign(X, const(F32, 3.0)),
    "a region": assign(X, shrink(Y, ((1, 6), (0, 8))), ALL_BUT_ONE),
    "the same region of itself": assign(X, shrink(X, ((1, 6), (0, 8))) * 2.0, ALL_BUT_ONE),
    "every second row": assign(X, const(F32, 0.0), ((0, 6, 2), (0, 8, 1))),
}
ELSEWHERE = {
    "flipped": assign(X, strided(X, (-1, 1))),
    "transposed": assign(reshape(X, (48,)), reshape(permute(X, (1, 0)), (48,))),
    "a row sum of itself": assign(X, elementwise(Ops.ADD, X, total(X, 1))),
    "one row further": assign(X, shrink(X, ((0, 5), (0, 8))), ALL_BUT_ONE),
}


def test_a_kernel_with_rows_of_its_own_assigns_a_region() -> None:
    """The rows that softmax keeps are no buffer of the kernel. This was a TypeError."""
    root = assign(data(0, 103, 21), softmax(data(1, 100, 16)), ((1, 101, 1), (3, 19, 1)))
    assert is_in_place(root)
    given = numbers(103 * 21, 1600)
    schedule = scheduled(root, in_place=(0,))
    x, y = given[0].reshape(103, 21).copy(), np.exp(given[1].reshape(100, 16))
    x[1:101, 3:19] = y / y.sum(1, keepdims=True)
    close(run_schedule(schedule, given)[schedule.results[0]], x.reshape(-1))


@pytest.mark.parametrize("name", IN_PLACE)
def test_aligned_assignments_are_in_place(name: str) -> None:
    assert is_in_place(IN_PLACE[name])


@pytest.mark.parametrize("name", ELSEWHERE)
def test_an_assignment_that_reads_other_places_is_not(name: str) -> None:
    assert not is_in_place(ELSEWHERE[name])


def test_nothing_is_overwritten_that_others_may_read() -> None:
    schedule = scheduled(assign(X, X + 1.0), in_place=())
    assert all(schedule.buffers[n].slot is None for kernel in kernels(schedule) for n in kernel.outputs)


def test_the_old_value_is_read_first_where_it_can_be() -> None:
    """total(X) goes before the kernel that overwrites X."""
    roots = assign(X, X + 1.0), total(X, 0)
    assert is_in_place(*roots)
    found = kernels(scheduled(*roots, in_place=(0,)))
    assert [kernel.name for kernel in found] == ["sum_8_k6", "map_6x8"] or found[-1].outputs == (found[-1].buffers[0],)


def test_the_old_value_read_afterwards_keeps_it() -> None:
    """X + new needs both: the new one goes elsewhere."""
    new = assign(X, total(X, 1) + elementwise(Ops.MUL, Y, Y))
    assert not is_in_place(new, elementwise(Ops.ADD, X, UOp(Ops.CONTIGUOUS, F32, (new * 2.0,))))


def test_two_assignments_to_one_old_value() -> None:
    """Only one of them may have its memory."""
    schedule = scheduled(assign(X, X + 1.0), assign(X, X * 2.0), in_place=(0,))
    written = [number for kernel in kernels(schedule) for number in kernel.outputs]
    assert len(set(written)) == 2
    assert sum(schedule.buffers[number].slot == 0 for number in written) <= 1


def test_two_tensors_that_are_swapped() -> None:
    """Each overwrites what the other one reads: one of them gets other memory. This was an InternalError."""
    given = numbers(48, 48)
    schedule = scheduled(assign(X, Y * 2.0), assign(Y, X * 3.0), in_place=(0, 1))
    arrays = run_schedule(schedule, given)
    for number, want in zip(schedule.results, (given[1] * 2, given[0] * 3), strict=True):
        close(arrays[number], want)
    written = {schedule.buffers[number].slot for kernel in kernels(schedule) for number in kernel.outputs}
    assert len(written & {0, 1}) == 1


def test_a_chain_of_assignments_stays_in_one_memory() -> None:
    first = assign(X, X + 1.0)
    second = assign(first, const(F32, 0.0), ((0, 1, 1), (0, 8, 1)))
    schedule = scheduled(second, in_place=(0,))
    assert {schedule.buffers[n].slot for kernel in kernels(schedule) for n in kernel.outputs} == {0}


@pytest.mark.parametrize("view", [lambda x: reshape(x, (48,)), lambda x: UOp(Ops.CONTIGUOUS, F32, (x,))])
def test_a_value_that_is_asked_for_is_not_overwritten_by_way_of_its_reshape(view: Callable[[UOp], UOp]) -> None:
    """x.assign(..); y = x.reshape(..); y[..] = 0: only one node reads the reshape, but x is a result as well. It had
    the values of y."""
    first = assign(X, X + 1.0)
    again = view(first)
    shape = static(again.shape)
    second = assign(again, const(F32, 0.0), tuple((0, size, 2) for size in shape))
    schedule = scheduled(first, second, in_place=(0,))
    given = numbers(48)
    arrays = run_schedule(schedule, given)
    want = (given[0] + 1).reshape(shape)
    close(arrays[schedule.results[0]], want)
    want[tuple(slice(None, None, 2) for _ in shape)] = 0
    close(arrays[schedule.results[1]], want)


@pytest.mark.parametrize("in_place", [(), (0,)], ids=["elsewhere", "in place"])
@pytest.mark.parametrize("name", [*IN_PLACE, *ELSEWHERE])
def test_assignments_give_the_same_in_place_or_not(name: str, in_place: tuple[int, ...]) -> None:
    root = {**IN_PLACE, **ELSEWHERE}[name]
    given = numbers(48, 48)
    schedule = scheduled(root, in_place=in_place)
    x, y = (g.reshape(6, 8) for g in given)
    want = {
        "at its own place": x + 1, "from elsewhere": y * 2, "a number": x * 0 + 3, "flipped": x[::-1],
        "a region": np.concatenate([x[:1], y[1:]]), "the same region of itself": np.concatenate([x[:1], x[1:] * 2]),
        "every second row": x * (np.arange(6) % 2)[:, None], "transposed": x.T,
        "a row sum of itself": x + x.sum(1, keepdims=True),
        "one row further": np.concatenate([x[:1], x[:5]]),
    }[name]  # fmt: skip
    close(run_schedule(schedule, given)[schedule.results[0]], want)


# --- order -----------------------------------------------------------------------------------------------------------
def test_producers_come_before_readers() -> None:
    a = UOp(Ops.CONTIGUOUS, F32, (X + 1.0,))
    b = UOp(Ops.CONTIGUOUS, F32, (elementwise(Ops.MUL, a, Y),))
    schedule = scheduled(total(elementwise(Ops.ADD, b, a), 1), b)
    seen = {n for n, plan in enumerate(schedule.buffers) if plan.slot is not None}
    for kernel in kernels(schedule):
        assert set(kernel.buffers) - set(kernel.outputs) <= seen
        seen.update(kernel.outputs)


def test_equal_kernels_of_different_data_are_one_ast() -> None:
    """Slots are numbered from 0 in each kernel: a layer that comes twice is compiled once."""
    a, b = kernels(scheduled(total(X, 1), total(data(1, 6, 8), 1)))
    assert a.ast is b.ast
    assert a.buffers != b.buffers


ROWS = UOp(Ops.IOTA, dtypes.int32, (), 12) * 5 % 12


@pytest.mark.parametrize("layer", [lambda x, w: softmax(matmul(x, w)), lambda x, w: take(matmul(x, w), ROWS, 0)])
def test_an_equal_layer_is_not_built_again(layer: Callable[[UOp, UOp], UOp], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done with a body, and the arithmetic of places, is done once for all layers."""
    built: list[UOp] = []
    tidy = importlib.import_module("kernmill.compiler.kernel.reduce_loops").tidy_reduce_loops
    module = importlib.import_module("kernmill.compiler.graph.build_kernels")

    def counted(ast: UOp) -> UOp:
        built.append(ast)
        result: UOp = tidy(ast)
        return result

    monkeypatch.setattr(module, "tidy_reduce_loops", counted)
    counts: list[int] = []
    for layers in (3, 9):
        module._finished.cache_clear()
        x = data(0, 12, 12)
        for n in range(layers):
            x = UOp(Ops.CONTIGUOUS, F32, (layer(x, data(1 + n, 12, 12)),))
        counts.append(len(kernels(scheduled(x, devices=("LLVM",) * 10))))
        counts.append(len(built))
        built.clear()
    assert counts[2] >= 3 * counts[0] - 4  # kernels ..
    assert counts[1] == counts[3]  # .. and those of them that were new


def test_names_say_what_and_how_large() -> None:
    assert names(X + 1.0) == ["map_6x8"]
    assert names(total(X, 1)) == ["sum_6_k8"]
    assert names(total(X, 0, 1)) == ["sum_1_k6x8"]


def test_the_origin_of_a_kernel_is_the_users_line() -> None:
    current_origin.line = "model.py:7"
    try:
        root = X * 1234.5
    finally:
        current_origin.line = None
    assert [kernel.origin for kernel in kernels(scheduled(root))] == ["model.py:7"]


# --- TAKE, CHECK, COPY, nothing --------------------------------------------------------------------------------------
def test_a_taken_place_is_kept_inside() -> None:
    """Whatever the index holds: the place is between two bounds."""
    index = data(1, 4, dtype=dtypes.int64)
    (load,) = [n for n in only(take(X, index, 0) + 1.0).toposort() if n.op is Ops.LOAD and n.dtype is F32]
    low, high = load.src[0].src[1].bounds
    assert 0 <= low <= high < 48


def test_a_check_is_looked_at_after_the_run() -> None:
    bad = reshape(elementwise(Ops.LT, total(X, 0, 1), const(F32, 0.0)), ())
    schedule = scheduled(UOp(Ops.CHECK, F32, (X + 1.0, bad), "it is negative"))
    (check,) = schedule.checks
    assert check.message == "it is negative"
    assert schedule.buffers[check.buffer].dtype is dtypes.bool
    assert schedule.buffers[check.buffer].is_output


def test_a_copy_is_an_item_of_its_own() -> None:
    moved = UOp(Ops.COPY, F32, (X + 1.0,), "PYTHON")
    schedule = scheduled(moved * 2.0)
    first, copy, last = schedule.items
    assert isinstance(first, Kernel)
    assert isinstance(copy, Copy)
    assert isinstance(last, Kernel)
    assert (first.device, last.device) == ("LLVM", "PYTHON")
    assert schedule.buffers[copy.target].device == "PYTHON"


def test_results_without_elements_launch_nothing() -> None:
    """Their loads would read from buffers that may be empty as well."""
    assert names(data(0, 0, 4) + 1.0) == []
    assert names(total(data(0, 0, 4), 0)) == ["map_4"]


def test_the_divisor_of_a_divide_instruction_is_never_zero() -> None:
    """Idle lanes hold zeros, and both sides of a WHERE are computed."""
    a, b = data(0, 9, dtype=dtypes.int32), data(1, 9, dtype=dtypes.int32)
    (division,) = [n for n in only(a.alu(Ops.CDIV, b)).toposort() if n.op is Ops.CDIV]
    assert division.src[1].op is Ops.WHERE
