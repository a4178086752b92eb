"""Captures share the memory of their intermediates."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from kernmill import Tensor, jit
from kernmill.runtime import get_device

MIB = 1 << 20


def steps(count: int) -> list[Any]:
    """Captured functions, each with intermediates of the size of its argument."""
    return [jit(lambda x, k=k: ((x + k).contiguous() * 2).contiguous().sum()) for k in range(1, 1 + count)]


def test_row_10_captures_of_far_memory_share_an_arena(far: Any) -> None:
    """Four captures with 4 MiB of intermediates each: 56, 52, 48, 44 MiB were free."""
    device = get_device(far())
    x = Tensor(np.ones(MIB, np.float32), device=device.name)
    free = []
    made = steps(4)
    for k, step in enumerate(made, 1):
        for _ in range(4):
            assert step(x).item() == 2 * (1 + k) * MIB
        device.allocator.trim()
        free.append(device.props().free_bytes)
    assert free[0] - free[-1] < MIB


def test_captures_of_host_memory_share_an_arena() -> None:
    memory = get_device("LLVM").allocator
    x = Tensor(np.ones((4, 1024, 1024), np.float32))
    made, held = steps(4), []
    for k, step in enumerate(made, 1):
        for _ in range(4):
            assert step(x).item() == 2 * (1 + k) * 4 * MIB
        held.append(memory.held_bytes()[0])
    assert held[-1] - held[0] < MIB


@pytest.mark.parametrize("size", [1000, 4 * MIB])
def test_captures_in_threads_do_not_disturb_each_other(device: str, size: int) -> None:
    if device == "PYTHON" and size > MIB:
        pytest.skip("a minute of plain Python")
    made, found = steps(4), dict[int, set[float]]()
    x = Tensor(np.ones(size, np.float32), device=device)

    def run(k: int) -> None:
        found[k] = {made[k - 1](x).item() for _ in range(12)}

    threads = [threading.Thread(target=run, args=(k,)) for k in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {k: {2.0 * (1 + k) * size} for k in range(1, 5)}


def test_a_replay_whose_arena_moves(far: Any) -> None:
    """Its old block is taken by somebody else meanwhile."""
    name = far(mib=16)
    x = Tensor(np.arange(1000, dtype=np.float32), device=name)
    step = jit(
        lambda x: ((x @ x.reshape(1000, 1)).contiguous() + (x + 1).contiguous().sum() * (x * 2).contiguous()).sum()
    )
    want = step(x).item()
    held = []
    for _ in range(6):
        assert step(x).item() == want
        get_device(name).allocator.trim()
        held.append(Tensor(np.ones(2500, np.float32), device=name))
