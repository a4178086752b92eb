import mmap
import weakref
from typing import Any

import pytest

from kernmill.ir import dtypes
from kernmill.runtime import WeightArena
from kernmill.runtime import weight_arena as module

needs_pages = pytest.mark.skipif(not hasattr(mmap, "MADV_NOHUGEPAGE"), reason="a system without large pages")
MB = 1 << 20


def _fill(buffer: Any, value: int) -> None:
    buffer.host_array()[:] = value


@needs_pages
def test_buffers_lie_side_by_side_and_aligned() -> None:
    arena = WeightArena("LLVM")
    a, b, c = (arena.buffer(dtypes.uint8, n) for n in (1000, 64, 5))
    assert (b.address - a.address, c.address - b.address) == (1024, 64)
    assert a.address % 64 == 0
    assert (a.nbytes, b.nbytes, c.nbytes) == (1000, 64, 5)


@needs_pages
def test_what_is_larger_than_a_mapping_has_one_of_its_own() -> None:
    arena = WeightArena("LLVM")
    small, large, after = (arena.buffer(dtypes.float32, n) for n in (100, 20 * MB, 100))
    _fill(large, 3)
    _fill(small, 1)
    _fill(after, 2)
    assert (small.host_array() == 1).all()
    assert (large.host_array() == 3).all()


@needs_pages
@pytest.mark.parametrize(("seconds", "tried"), [(2e-4, 100), (7e-3, 4)])
def test_large_pages_are_tried_until_one_is_slow(seconds: float, tried: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pages = [0.0], list[int]()

    def tick() -> float:
        clock[0] += seconds
        return clock[0]

    def advise(block: Any, advice: int, start: int = 0, size: int | None = None) -> bool:
        pages.extend([start] if size else [])
        return True

    monkeypatch.setattr("kernmill.runtime.allocator.Block.advise", advise)
    monkeypatch.setattr("time.perf_counter", tick)
    arena = WeightArena("LLVM")
    for _ in range(200):
        arena.buffer(dtypes.uint8, MB)
    assert abs(len(pages) - tried) <= 4  # pieces at the ends of mappings are none


@needs_pages
def test_memory_goes_back_with_the_room_and_its_last_buffer() -> None:
    arena = WeightArena("LLVM")
    buffers = [arena.buffer(dtypes.uint8, 40 * MB) for _ in range(3)]
    wholes = [weakref.ref(buffer.whole) for buffer in buffers]
    assert len({id(whole()) for whole in wholes}) == 3
    del arena
    assert all(whole() is not None for whole in wholes)
    buffers.pop()
    assert [whole() is None for whole in wholes] == [False, False, True]
    buffers.clear()
    assert all(whole() is None for whole in wholes)


def test_a_system_without_such_pages_gives_plain_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ORDINARY", -1)
    arena = WeightArena("LLVM")
    buffer = arena.buffer(dtypes.float32, 10)
    assert buffer.nbytes == 40
    assert buffer.whole is buffer


def test_a_device_with_other_memory_gives_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernmill.runtime.allocator.Block.advise", lambda *_: False)
    arena = WeightArena("LLVM")
    buffers = [arena.buffer(dtypes.float32, 10) for _ in range(2)]
    assert all(buffer.whole is buffer for buffer in buffers)


@needs_pages
def test_what_is_full_or_closed_may_become_large_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    advised: list[int] = []

    def advise(block: Any, advice: int, *_: int) -> bool:
        advised.append(advice)
        return True

    monkeypatch.setattr("kernmill.runtime.allocator.Block.advise", advise)
    arena = WeightArena("LLVM")
    arena.buffer(dtypes.uint8, 1000)
    arena.buffer(dtypes.uint8, 80 * MB)
    assert advised.count(module._ORDINARY) == 2
    before = advised.count(module._LARGE)
    arena.close()
    arena.close()
    assert advised.count(module._LARGE) == before + 1
