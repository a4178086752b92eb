"""Exchanges begin behind the launches that write what they read, and end before those that need their memory."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kernmill import Context, Tensor
from kernmill.captures.ownership import buffer_of
from kernmill.ir import dtypes
from kernmill.runtime import (
    BEGIN,
    END,
    Arena,
    Buffer,
    Exchange,
    HostCall,
    MemoryUse,
    Replay,
    allocate_buffer,
    buffer_node,
    overlapped,
    recording,
    run_exchanges,
)


def memory(place: int, size: int = 1) -> Buffer:
    return Buffer("LLVM", dtypes.float32, size, None, 4096 + 4 * place)


def kernel(output: int, *inputs: int) -> MemoryUse:
    written = memory(output)
    return MemoryUse([written, *map(memory, inputs)], [written])


def exchange(target: int, source: int) -> tuple[MemoryUse, MemoryUse]:
    touched, written = [memory(target), memory(source)], [memory(target)]
    return MemoryUse(touched, written, BEGIN), MemoryUse(touched, written, END)


def test_an_exchange_begins_early_and_ends_late() -> None:
    """0 and 1 write what 3 and 4 exchange; 7 reads the first result, 8 the second."""
    (a, a_end), (b, b_end) = exchange(10, 0), exchange(11, 1)
    launches = [kernel(0), kernel(1, 0), kernel(2, 1), a, b, a_end, b_end, kernel(3, 10), kernel(4, 11)]
    assert overlapped(launches) == [0, 3, 1, 4, 2, 5, 7, 6, 8]


def test_what_keeps_its_place() -> None:
    begin, end = exchange(10, 0)
    host, check = MemoryUse([], [], "host"), MemoryUse([memory(5)], [], "check")
    assert overlapped([kernel(0), host, kernel(1), begin, end, kernel(2)]) == [0, 1, 3, 2, 5, 4]
    assert overlapped([kernel(0), check, begin, end, kernel(2), check, kernel(3)]) == [0, 2, 1, 4, 3, 5, 6]
    inside = Buffer("LLVM", dtypes.float32, 1, Arena("LLVM", dtypes.uint8, 64, None, 4096), 4096)
    moved = [kernel(8), MemoryUse([inside], [], BEGIN), MemoryUse([inside], [], END), kernel(9)]
    assert overlapped(moved) == [0, 1, 2, 3]


def test_parts_of_memory_meet() -> None:
    begin = MemoryUse([memory(2, 4)], [], BEGIN)
    assert overlapped([kernel(5), kernel(6), begin]) == [0, 2, 1]
    assert overlapped([kernel(6), kernel(5), begin]) == [0, 1, 2]


@pytest.mark.parametrize("seed", range(20))
def test_launches_that_share_memory_keep_their_order(seed: int) -> None:
    chance = random.Random(seed)
    launches: list[MemoryUse] = []
    ends: list[tuple[int, MemoryUse]] = []
    for n in range(40):
        if chance.random() < 0.25:
            begin, end = exchange(100 + n, chance.randrange(8))
            launches.append(begin)
            ends.append((n + chance.randrange(4), end))
        else:
            places = [*range(8), *(100 + m for m in range(n))]
            launches.append(kernel(chance.randrange(8), *chance.sample(places, 2)))
        launches += [end for at, end in ends if at <= n]
        ends = [(at, end) for at, end in ends if at > n]
    launches += [end for _, end in ends]
    order = overlapped(launches)
    assert sorted(order) == [*range(len(launches))]
    place = {number: at for at, number in enumerate(order)}
    for a, one in enumerate(launches):
        for b in range(a + 1, len(launches)):
            other = launches[b]
            shared = {x.address for x in one.touched} & {x.address for x in other.touched}
            if shared & {x.address for x in (*one.written, *other.written)} or one.role == other.role == BEGIN:
                assert place[a] < place[b]


def test_a_replay_computes_while_an_exchange_goes_on(device: str) -> None:
    """Doubling stands for what other ranks add; on a device that the host cannot see it works on copies."""
    events: list[str] = []
    begun: list[tuple[Sequence[Any], Sequence[Any]]] = []

    def begin(outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
        events.append("begin")
        begun.append((outputs, inputs))

    def end(outputs: Sequence[Any], _: Sequence[Any]) -> None:
        events.append("end")
        inputs = begun.pop()[1]
        outputs[0][...] = 2 * inputs[0]

    with Context(DEVICE=device):
        x = Tensor(np.array([1, 2, 3], np.float32)).realize()
        with recording() as recorded:
            first = (x + 1).realize()
            second = (first * 10).realize()
            source = buffer_of(first)
            assert source is not None
            target = allocate_buffer(source.device, source.dtype, source.numel)
            run_exchanges([Exchange(begin, end, (target,), (source,))])
            third = (Tensor._make(buffer_node(target, (3,)), source.device) + second).realize()
        roles = [step.role if isinstance(step, HostCall) else "kernels" for step in recorded.overlapped().steps]
        assert roles == ["kernels", BEGIN, "kernels", END, "kernels"]
        np.testing.assert_array_equal(third.numpy(), [24, 36, 48])
        given, result = buffer_of(x), buffer_of(third)
        assert given is not None
        assert result is not None
        replay = Replay(recorded, [given, result])
        moved, out = Tensor(np.array([0, 1, 5], np.float32)).realize(), allocate_buffer(device, result.dtype, 3)
        now = buffer_of(moved)
        assert now is not None
        replay.run([now, out])
        np.testing.assert_array_equal(out.host_array(), [12, 24, 72])
    assert events == ["begin", "end"] * 2
