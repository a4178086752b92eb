"""Intermediates share memory, and never two that are alive at once."""

from __future__ import annotations

import random

import pytest

from kernmill.compiler import plan_memory
from kernmill.ir import BufferPlan, Copy, GraphPlan, MemoryPlan, Ops, UOp, dtypes, elementwise, permute
from tests.compiler.kernels import F32, data, matmul, scheduled, softmax


def size_of(plan: BufferPlan) -> int:
    return plan.numel * plan.dtype.size_bytes


def check(schedule: GraphPlan) -> MemoryPlan:
    """No two whose lives touch overlap; everything lies inside the arena, aligned."""
    plan = plan_memory(schedule)
    lives: dict[int, list[int]] = {}
    for position, item in enumerate(schedule.items):
        for number in (item.source, item.target) if isinstance(item, Copy) else item.buffers:
            lives.setdefault(number, []).append(position)
    for a, start in plan.offsets.items():
        one = schedule.buffers[a]
        assert one.slot is None
        assert not one.is_output
        assert start % 128 == 0
        assert start + size_of(one) <= plan.arena_bytes[one.device]
        for b, other in plan.offsets.items():
            touching = min(lives[a]) <= max(lives[b]) and min(lives[b]) <= max(lives[a])
            if a < b and touching and schedule.buffers[b].device == one.device:
                assert start + size_of(one) <= other or other + size_of(schedule.buffers[b]) <= start, f"{a} over {b}"
    for number in lives:
        assert schedule.buffers[number].slot is not None or schedule.buffers[number].is_output or number in plan.offsets
    return plan


def random_schedule(seed: int) -> GraphPlan:
    rng = random.Random(seed)
    schedule = GraphPlan(buffers=[BufferPlan(dtypes.float32, 100, "LLVM", 0)])
    for _ in range(rng.randint(1, 40)):
        source = rng.randrange(max(0, len(schedule.buffers) - rng.randint(1, 8)), len(schedule.buffers))
        device = rng.choice(["LLVM", "LLVM", "PYTHON"])
        schedule.buffers.append(BufferPlan(rng.choice(dtypes.data), rng.choice([0, 1, 31, 32, 33, 500, 5000]), device))
        schedule.items.append(Copy(source, len(schedule.buffers) - 1))
    schedule.buffers[-1].is_output = True
    return schedule


@pytest.mark.parametrize("seed", range(60))
def test_live_buffers_never_overlap(seed: int) -> None:
    plan = check(random_schedule(seed))
    assert sum(plan.arena_bytes.values()) <= plan.unplanned_bytes


def test_neighbours_are_not_in_the_same_cache_sets() -> None:
    """Buffers of whole pages, read together: each element was read from L2."""
    halves = [elementwise(Ops.MUL, data(n, 64, 64), data(n, 64, 64)).alu(Ops.EXP).alu(Ops.SIN) for n in range(3)]
    plan = check(scheduled(matmul(matmul(halves[0], halves[1]), halves[2])))
    assert len({offset % 4096 for offset in plan.offsets.values()}) == len(set(plan.offsets.values())) > 2


def test_a_chain_needs_two_places() -> None:
    """However long it is."""
    x = data(0, 64, 64)
    for _ in range(12):
        x = UOp(Ops.CONTIGUOUS, F32, (permute(x, (1, 0)) + 1.0,))
    plan = check(scheduled(x))
    assert plan.arena_bytes == {"LLVM": 2 * (64 * 64 * 4 + 128)}
    assert plan.lower_bound_bytes == 2 * (64 * 64 * 4 + 128)
    assert plan.unplanned_bytes == 11 * (64 * 64 * 4 + 128)


def test_a_network_comes_close_to_the_lower_bound() -> None:
    x = data(0, 32, 64)
    for layer in range(6):
        x = softmax(matmul(x, data(layer + 1, 64, 64)))
        x = matmul(x, data(layer + 1, 64, 64))
    plan = check(scheduled(x, devices=("LLVM",) * 8))
    assert plan.arena_bytes["LLVM"] <= 1.25 * plan.lower_bound_bytes


def test_inputs_and_results_are_not_planned() -> None:
    plan = check(scheduled(data(0, 8) + 1.0))
    assert plan.offsets == {}
    assert plan.arena_bytes == {}
