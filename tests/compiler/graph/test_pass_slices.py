"""Parts of intermediates as memory of their own: one kernel for all places of a sequence, and the same values."""

from __future__ import annotations

import numpy as np
import pytest

from kernmill import Tensor, jit
from kernmill.compiler import plan_memory
from kernmill.ir import Context, GraphPlan, Ops, UOp, elementwise, reshape, shrink
from kernmill.nn import GRU
from kernmill.runtime import plan as graph_plans
from tests.compiler.kernels import (
    Array,
    close,
    data,
    kernels,
    matmul,
    run_graph,
    run_schedule,
    scheduled,
    softmax,
    total,
)

PLACES, BATCH, WIDTH = 5, 2, 6


def stored(x: UOp) -> UOp:
    return UOp(Ops.CONTIGUOUS, x.dtype, (x,))


def row(x: UOp, place: int, axis: int = 0) -> UOp:
    part = shrink(x, tuple((place, place + 1) if n == axis else (0, size) for n, size in enumerate(x.shape)))
    return reshape(part, tuple(size for n, size in enumerate(x.shape) if n != axis))


def recurrent(axis: int) -> UOp:
    """Each place needs the one before it and its part of what is computed for all at once."""
    shape = [BATCH, WIDTH]
    shape.insert(axis, PLACES)
    given = stored(data(0, *shape).alu(Ops.SIN))
    state = data(1, BATCH, WIDTH)
    for place in range(PLACES):
        state = stored(elementwise(Ops.ADD, matmul(state, data(2, WIDTH, WIDTH)), row(given, place, axis)))
    return state


def arrays(*counts: int) -> list[Array]:
    return [np.random.default_rng(n).uniform(-1, 1, count).astype(np.float32) for n, count in enumerate(counts)]


GIVEN = arrays(PLACES * BATCH * WIDTH, BATCH * WIDTH, WIDTH * WIDTH)


def parts(plan: GraphPlan) -> list[tuple[int, int]]:
    return [buffer.part for buffer in plan.buffers if buffer.part is not None]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_places_of_a_sequence_share_a_kernel(axis: int) -> None:
    root = recurrent(axis)
    plan = scheduled(root)
    assert len(kernels(plan)) == 1 + PLACES
    assert len({kernel.key for kernel in kernels(plan)}) == 2
    assert len({first for _, first in parts(plan)}) == PLACES
    close(run_schedule(plan, GIVEN)[plan.results[0]], run_graph(root, GIVEN))


def test_a_part_keeps_its_whole_alive() -> None:
    """Its memory is given to nobody else before the last place is read."""
    plan = scheduled(recurrent(0))
    memory = plan_memory(plan)
    (whole,) = {whole for whole, _ in parts(plan)}
    begin, end = memory.offsets[whole], memory.offsets[whole] + 4 * plan.buffers[whole].numel
    states = [kernel.outputs[0] for kernel in kernels(plan)[1:]]
    for number in states[:-1]:
        assert not begin <= memory.offsets[number] < end
    assert not {number for number, buffer in enumerate(plan.buffers) if buffer.part} & memory.offsets.keys()


def test_two_places_of_one_kernel_are_one_part() -> None:
    given = stored(data(0, PLACES, BATCH, WIDTH).alu(Ops.SIN))
    pairs = [elementwise(Ops.MUL, row(given, n), row(given, n + 1)) for n in range(1, 4)]
    roots = [stored(total(pair, 1)) for pair in pairs]
    plan = scheduled(*roots)
    assert len({kernel.key for kernel in kernels(plan)}) == 2
    assert {first for _, first in parts(plan)} == {BATCH * WIDTH * n for n in (1, 2, 3)}
    for root, number in zip(roots, plan.results, strict=True):
        close(run_schedule(plan, GIVEN)[number], run_graph(root, GIVEN))


def test_results_and_data_have_no_parts() -> None:
    """A replay finds them by the tensors that hold them."""
    given = stored(data(0, PLACES, BATCH, WIDTH).alu(Ops.SIN))
    assert not parts(scheduled(given, stored(row(given, 2) * 2.0)))
    assert not parts(scheduled(row(data(0, PLACES, BATCH, WIDTH), 2) * 2.0))


def test_what_is_read_as_a_whole_has_no_parts() -> None:
    assert not parts(scheduled(softmax(stored(data(0, 9, 20).alu(Ops.SIN)))))


@pytest.mark.parametrize("is_captured", [False, True])
def test_layers_over_sequences_compute_the_same_with_and_without_gradients(device: str, is_captured: bool) -> None:
    """On each device, also checked against the reference kernel by kernel, replayed, and read from disk."""
    layer, places = GRU(4, 8), 6
    x = Tensor.randn(places, 3, 4)

    def step(x: Tensor) -> tuple[Tensor, Tensor | None]:
        for tensor in layer.parameters():
            tensor.grad = None
        loss = (layer(x)[0] * 0.5).sum()
        loss.backward()
        return loss, layer.parameters()[1].grad

    with Context(CHECK=int(device == "LLVM" and not is_captured)):
        call = jit(step) if is_captured else step
        got = [[t.numpy().copy() for t in call(x) if t is not None] for _ in range(3)]
    graph_plans.plans.clear()
    want = [t.numpy() for t in step(x) if t is not None]
    for loss, gradient in got:
        close(loss, want[0])
        close(gradient, want[1])


def test_parts_of_an_intermediate_are_no_memory_more() -> None:
    def places(x: Tensor) -> Tensor:
        given = (x * 2).contiguous()  # each of its rows is a part
        state = given[0]
        for n in range(1, 4):
            state = (state + given[n]).softmax(0).contiguous()
        return state

    work = jit(places)
    for _ in range(2):
        work(Tensor.ones(4, 1000).contiguous().realize())
    kept, least, _ = work.memory()
    assert kept >= least >= 16000
