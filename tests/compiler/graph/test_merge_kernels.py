"""Kernels over the same loops become one; its results, their order in memory and the bytes alive stay right."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from kernmill.compiler import merge_kernels, plan_memory
from kernmill.ir import GraphPlan, Kernel, Ops, UOp, assign, dtypes, elementwise, permute, shrink, strided, take
from tests.compiler.kernels import Array, close, data, kernels, run_on, run_schedule, scheduled, softmax, total

ROWS, COLUMNS = 6, 6
P, M, V, G = (data(slot, ROWS, COLUMNS) for slot in range(4))


def given(count: int = 4) -> list[Array]:
    return [np.random.default_rng(n).uniform(0.1, 2, ROWS * COLUMNS).astype(np.float32) for n in range(count)]


def stored(x: UOp) -> UOp:
    return UOp(Ops.CONTIGUOUS, x.dtype, (x,))


def adam() -> tuple[UOp, UOp, UOp]:
    mean = assign(M, elementwise(Ops.ADD, M * 0.9, G * 0.1))
    square = assign(V, elementwise(Ops.ADD, V * 0.99, elementwise(Ops.MUL, G, G) * 0.01))
    step = elementwise(Ops.DIV, mean, square.alu(Ops.SQRT) + 1e-8)
    return mean, square, assign(P, elementwise(Ops.SUB, P, step * 0.1))


def right(plan: GraphPlan, *wanted: Array) -> None:
    arrays = run_schedule(plan, given())
    for number, want in zip(plan.results, wanted, strict=True):
        close(arrays[number], want)


def test_a_step_of_adam_is_one_kernel() -> None:
    """Each tensor is loaded once and stored once."""
    p, m, v, g = given()
    mean, square = m * 0.9 + g * 0.1, v * 0.99 + g * g * 0.01
    plan = scheduled(*adam(), in_place=(0, 1, 2))
    (kernel,) = kernels(plan)
    assert len(kernel.outputs) == len(kernel.ast.src) == 3
    assert sum(node.op is Ops.LOAD for node in kernel.ast.toposort()) == len(kernel.buffers) == 4
    assert {plan.buffers[n].slot for n in kernel.outputs} == {0, 1, 2}
    right(plan, mean, square, p - 0.1 * mean / (np.sqrt(square) + 1e-8))


@pytest.mark.parametrize("device", ["LLVM", "PYTHON"])
def test_it_runs_with_every_stage_verified(device: str) -> None:
    (kernel,) = kernels(scheduled(*adam(), in_place=(0, 1, 2)))
    arrays = given()
    mean = kernel.buffers[0]
    want = arrays[1] * 0.9 + arrays[3] * 0.1
    plan = scheduled(*adam(), in_place=(0, 1, 2))
    slots = [plan.buffers[n].slot for n in kernel.buffers]
    assert plan.buffers[mean].slot == 1
    close(run_on(device, kernel.ast, [arrays[slot or 0] for slot in slots]), want)


def test_a_result_used_by_another_is_handed_over() -> None:
    first = P + 1.0
    plan = scheduled(first, first * 2.0)
    (kernel,) = kernels(plan)
    assert len(kernel.outputs) == 2
    assert len(kernel.buffers) == 3
    right(plan, given()[0] + 1, given()[0] * 2 + 2)


def test_what_nobody_else_reads_is_not_written() -> None:
    """A value that was stored for two readers, both of them in the kernel now."""
    middle = stored(P + 1.0)
    plan = scheduled(middle * 2.0, elementwise(Ops.MUL, middle, G))
    (kernel,) = kernels(plan)
    assert len(kernel.outputs) == 2
    assert set(kernel.outputs) == set(plan.results)
    assert plan_memory(plan).arena_bytes == {}
    p, _, _, g = given()
    right(plan, (p + 1) * 2, (p + 1) * g)


def test_what_another_kernel_reads_is_written() -> None:
    middle = stored(P + 1.0)
    plan = scheduled(middle * 2.0, total(elementwise(Ops.MUL, middle, permute(middle, (1, 0))), 1))
    p = given()[0].reshape(ROWS, COLUMNS) + 1
    right(plan, p * 2, (p * p.T).sum(1))
    assert any(plan.buffers[n].is_intermediate for kernel in kernels(plan) for n in kernel.outputs)


def test_several_dtypes() -> None:
    plan = scheduled(P.cast(dtypes.float64) * 2.0, (P * 3.0).cast(dtypes.int32), P.alu(Ops.NEG).cast(dtypes.bool))
    (kernel,) = kernels(plan)
    assert [plan.buffers[n].dtype.name for n in kernel.outputs] == ["float64", "int32", "bool"]
    p = given()[0]
    right(plan, p.astype(np.float64) * 2, (p * 3).astype(np.int32), p != 0)


APART = {
    "read at other places": (assign(M, G * 2.0), strided(M, (-1, 1)) * 3.0),
    "what is written, turned": (P + 1.0, permute(P + 1.0, (1, 0)) * 2.0),
    "other loops": (P + 1.0, data(4, ROWS, COLUMNS + 1) * 2.0),
    "nothing in common": (P + 1.0, M * 2.0),
    "a row of it": (P + 1.0, take(stored(P + 1.0), UOp(Ops.IOTA, dtypes.int32, (), ROWS) * 5 % ROWS, 0) * 2.0),
    "with a sum": (P + 1.0, softmax(P)),
}


@pytest.mark.parametrize("name", APART)
def test_kernels_that_stay_apart(name: str) -> None:
    assert len(kernels(scheduled(*APART[name], in_place=(1,)))) >= 2


def test_the_old_value_read_at_its_place_is_the_old_one() -> None:
    """M + G and the new M from one kernel: what is loaded of M is loaded before it is overwritten."""
    plan = scheduled(elementwise(Ops.ADD, M, G), assign(M, G * 5.0), in_place=(1,))
    assert len(kernels(plan)) == 1
    _, m, _, g = given()
    right(plan, m + g, g * 5)


def test_regions() -> None:
    """Two tensors written from row 1 on: the same loops, and places that are not those of the whole."""
    part = ((1, ROWS, 1), (0, COLUMNS, 1))
    rows = shrink(G, ((1, ROWS), (0, COLUMNS)))
    first = assign(M, rows, part)
    second = assign(V, elementwise(Ops.MUL, shrink(first, ((1, ROWS), (0, COLUMNS))), rows), part)
    plan = scheduled(first, second, in_place=(1, 2))
    assert len(kernels(plan)) == 1
    _, m, v, g = (x.reshape(ROWS, COLUMNS) for x in given())
    right(plan, np.vstack([m[:1], g[1:]]), np.vstack([v[:1], g[1:] * g[1:]]))


def test_a_kernel_moves_past_others_that_do_not_mind() -> None:
    """Between the mean and the parameter a product reads the parameter: the mean comes later instead."""
    mean = assign(M, elementwise(Ops.ADD, M, G))
    before = total(elementwise(Ops.MUL, P, permute(P, (1, 0))), 1)
    plan = scheduled(mean, before, assign(P, elementwise(Ops.SUB, P, mean)), in_place=(0, 1))
    found = kernels(plan)
    assert [len(kernel.outputs) for kernel in found] == [1, 2]
    p, m, _, g = (x.reshape(ROWS, COLUMNS) for x in given())
    right(plan, m + g, (p * p.T).sum(1), p - (m + g))


def test_equal_layers_are_joined_once() -> None:
    """The same kernel for each of them."""
    layers = [data(slot, ROWS, COLUMNS) for slot in range(6)]
    roots = [root for x in layers for root in (x + 1.0, x * x.alu(Ops.EXP))]
    found = kernels(scheduled(*roots))
    assert len(found) == 6
    assert len({kernel.ast for kernel in found}) == 1


def test_no_more_bytes_are_alive() -> None:
    """Joined with the first kernel, the last one would keep its result from the start."""
    rng = np.random.default_rng(5)
    for _ in range(40):
        x, seen = data(0, 32, 32), [data(1, 32, 32)]
        for step in range(12):
            one, other = (seen[int(rng.integers(max(0, len(seen) - 4), len(seen)))] for _ in range(2))
            made = elementwise(Ops.MUL, one, permute(other, (1, 0)) if rng.random() < 0.5 else other)
            seen.append(stored(elementwise(Ops.ADD, made, x * float(step))))
        joined = scheduled(seen[-1], seen[-3])
        apart = before_joining(seen[-1], seen[-3])
        assert len(joined.items) <= len(apart.items)
        assert plan_memory(joined).lower_bound_bytes <= plan_memory(apart).lower_bound_bytes


def before_joining(*roots: UOp) -> GraphPlan:
    with pytest.MonkeyPatch.context() as patch:
        module = importlib.import_module("kernmill.compiler.graph.pipeline")
        patch.setattr(module, "merge_kernels", lambda plan: plan)
        return scheduled(*roots)


def test_joined_again_nothing_changes() -> None:
    plan = scheduled(*adam(), total(P, 1), in_place=(1, 2))
    assert merge_kernels(plan).items == plan.items
    assert all(isinstance(item, Kernel) for item in plan.items)
