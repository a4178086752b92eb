import ctypes
import mmap
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernmill.ir import CompileError, dtypes
from kernmill.runtime import Properties, WeightArena, device, get_device, host, pool, wait_for_large_pages
from kernmill.runtime import weight_arena as module
from tests.runtime.processes import run

needs_pages = pytest.mark.skipif(not hasattr(mmap, "MADV_NOHUGEPAGE"), reason="a system without large pages")
MB = 1 << 20
LARGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", -1)
_enlarge = module._enlarge


def _end_threads() -> None:
    """Of arenas that are gone or closed."""
    for thread in threading.enumerate():
        if thread.name.endswith(("(_get_ahead)", "(_enlarge)")):
            thread.join(20)


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """What threads of other tests tell the system, up to a second later, is not taken for this one's; none makes large
    pages unless a test asks for it."""
    _end_threads()
    monkeypatch.setattr(module, "_enlarge", lambda _: None)


@pytest.fixture
def at_once(apart: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are made large as soon as an arena is closed."""
    monkeypatch.setattr(module, "_enlarge", _enlarge)
    monkeypatch.setattr(module, "_AFTER_S", 0.0)
    monkeypatch.setattr(module, "_is_allowed", lambda: True)


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


class Pages:
    """A system whose large pages take so long, in place of this one's: how many were got, and how many were large."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, large_s: float) -> None:
        self.now, self.large_s = 0.0, large_s
        self.large = self.all = 0
        self.is_large = False
        monkeypatch.setattr("kernmill.runtime.memory.allocator.Block.advise", self.advise)
        monkeypatch.setattr(module, "touch", self.touch)
        monkeypatch.setattr("time.thread_time", lambda: self.now)

    def advise(self, advice: int, start: int = 0, size: int | None = None) -> bool:
        self.is_large = size is not None
        return True

    def touch(self, address: int, size: int) -> None:
        count = size // (2 * MB)
        self.now += count * (self.large_s if self.is_large else 5e-4)
        self.all += count
        self.large += count * self.is_large
        self.is_large = False

    def wait(self, mb: int) -> None:
        """Until so much was got."""
        limit = time.monotonic() + 20
        while self.all * 2 < mb - 2:
            assert time.monotonic() < limit, self.all
            time.sleep(1e-3)


@needs_pages
@pytest.mark.parametrize(("large_s", "least", "most"), [(2e-4, 190, 200), (9e-4, 190, 200), (7e-3, 3, 8)])
def test_large_pages_are_got_as_long_as_they_are_quick(
    large_s: float, least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = Pages(monkeypatch, large_s)
    arena = WeightArena("LLVM", [4 * MB] * 100)
    pages.wait(390)
    assert least <= pages.large <= most
    arena.close()


@needs_pages
def test_what_the_largest_is_made_of_has_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a matrix is laid its file's pages are there too: so much less is got ahead."""
    pages = Pages(monkeypatch, 2e-4)
    arena = WeightArena("LLVM", [10 * MB, 100 * MB, *[10 * MB] * 5])
    pages.wait(56)
    arena.buffer(dtypes.uint8, 10 * MB)
    large = arena.buffer(dtypes.uint8, 100 * MB)
    time.sleep(0.05)
    assert 2 * pages.all <= 60
    following = arena.buffer(dtypes.uint8, 10 * MB)
    assert following.address == large.address + 100 * MB
    pages.wait(70)
    arena.close()


@needs_pages
def test_pages_are_not_got_ahead_where_nothing_can_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread ended with a traceback on the screen, besides the error that the caller gets."""
    told, called = list[object](), threading.Event()

    def touch(address: int, size: int) -> None:
        called.set()
        raise CompileError("LLVM refuses")

    monkeypatch.setattr(module, "touch", touch)
    monkeypatch.setattr(threading, "excepthook", told.append)
    arena = WeightArena("LLVM", [4 * MB] * 24)
    assert called.wait(20)
    _end_threads()
    assert told == []
    arena.close()


@needs_pages
@pytest.mark.skipif(host.usable_cpus() < 2, reason="a second process compiles where there is a second CPU")
def test_llvm_stays_out_of_the_process_that_gets_pages(tmp_path: Path) -> None:
    """With an empty cache the thread imported it for its loop: 62 MiB of the peak of a model's start."""
    code = """
import time
from kernmill.runtime import WeightArena, pool
arena = WeightArena("LLVM", [4 << 20] * 24)
while not pool._loaded.cache_info().currsize:
    time.sleep(0.01)
print("llvmlite" in sys.modules)
arena.close()
"""
    assert run(code, tmp_path)[0].split() == ["False"]


@needs_pages
def test_pages_that_are_got_keep_what_is_written_there() -> None:
    arena = WeightArena("LLVM", [4 * MB] * 24)
    buffers = [arena.buffer(dtypes.uint8, 4 * MB) for _ in range(24)]
    for number, buffer in enumerate(buffers):
        _fill(buffer, number + 1)
    time.sleep(0.02)
    assert all((buffer.host_array() == number + 1).all() for number, buffer in enumerate(buffers))
    pool.touch(buffers[0].whole.address, 96 * MB)
    assert all((buffer.host_array() == number + 1).all() for number, buffer in enumerate(buffers))


@needs_pages
def test_an_arena_that_nobody_fills_any_more_gives_its_memory_back() -> None:
    arena = WeightArena("LLVM", [10 * MB, 100 * MB])
    whole = weakref.ref(arena._whole)
    del arena
    limit = time.monotonic() + 20
    while whole() is not None:
        assert time.monotonic() < limit
        time.sleep(1e-3)


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
    monkeypatch.setattr("kernmill.runtime.memory.allocator.Block.advise", lambda *_: False)
    arena = WeightArena("LLVM")
    buffers = [arena.buffer(dtypes.float32, 10) for _ in range(2)]
    assert all(buffer.whole is buffer for buffer in buffers)


@pytest.fixture
def advised(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the system is told about pages, from now on."""
    found: list[int] = []

    def advise(block: Any, advice: int, *_: int) -> bool:
        found.append(advice)
        return True

    monkeypatch.setattr("kernmill.runtime.memory.allocator.Block.advise", advise)
    return found


@needs_pages
def test_what_is_full_or_closed_may_become_large_pages(advised: list[int]) -> None:
    arena = WeightArena("LLVM")
    kept = [arena.buffer(dtypes.uint8, 1000), arena.buffer(dtypes.uint8, 80 * MB)]
    assert advised.count(module._ORDINARY) == len(kept)
    before = advised.count(LARGE_PAGES)
    arena.close()
    arena.close()
    assert advised.count(LARGE_PAGES) == before + 1


@pytest.fixture
def can_collapse() -> None:
    """A system that makes large pages of ordinary ones."""
    if not module._is_allowed():
        pytest.skip("no Linux, or one that is to make none")
    one = mmap.mmap(-1, 4 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    one.write(bytes(4 * MB))
    address = ctypes.addressof(ctypes.c_char.from_buffer(one))
    if not module._collapsed(address + -address % (2 * MB), 2 * MB):
        pytest.skip("a system that puts no ordinary pages into large ones")


def _until(is_so: Callable[[], bool]) -> None:
    limit = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < limit
        time.sleep(1e-3)


@needs_pages
@pytest.mark.usefixtures("can_collapse", "at_once")
def test_ordinary_pages_become_large_ones_that_hold_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose pages came slowly was read at 21 GB/s in place of 29, for minutes (docs/topics/memory.md)."""
    made, refused, collapsed = set[int](), list[int](), module._collapsed

    def watched(address: int, size: int) -> bool:
        is_made = collapsed(address, size)
        made.update(range(address, address + size, 2 * MB)) if is_made else refused.append(address)
        return is_made

    monkeypatch.setattr(module, "_collapsed", watched)
    monkeypatch.setattr(module, "_get_ahead", lambda *_: None)
    arena = WeightArena("LLVM", [10 * MB] * 10)
    buffers = [arena.buffer(dtypes.uint8, 10 * MB) for _ in range(9)]  # one is not asked for: it takes no memory
    for number, buffer in enumerate(buffers):
        _fill(buffer, number)
    arena.close()
    sums = set[int]()

    def is_large() -> bool:
        sums.add(sum(int(buffer.host_array().sum(dtype="uint64")) for buffer in buffers))
        return 2 * MB * len(made) >= 86 * MB or bool(refused)

    _until(is_large)
    if refused:
        pytest.skip("a system that has no large page left")
    assert sums == {10 * MB * sum(range(9))}
    wait_for_large_pages()
    begin, end = min(b.address for b in buffers), max(b.address + 10 * MB for b in buffers)
    assert all(begin <= page and page + 2 * MB <= end for page in made)
    assert all((buffer.host_array() == number).all() for number, buffer in enumerate(buffers))


@needs_pages
@pytest.mark.usefixtures("at_once")
def test_what_makes_large_pages_keeps_no_memory_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model goes while its first page is made large: what holds it then lets go, and no other page is made."""
    arena = WeightArena("LLVM")
    kept, asked = [arena.buffer(dtypes.uint8, 60 * MB)], list[int]()
    whole = weakref.ref(kept[0].whole)

    def collapsed(address: int, _size: int) -> bool:
        asked.append(address)
        kept.clear()
        return True

    monkeypatch.setattr(module, "_collapsed", collapsed)
    arena.close()
    wait_for_large_pages()
    assert whole() is None
    assert len(asked) == 1


@needs_pages
@pytest.mark.usefixtures("at_once")
def test_a_system_that_makes_no_large_pages_is_asked_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[int]()

    def refuses(address: int, _size: int) -> bool:
        asked.append(address)
        return False

    monkeypatch.setattr(module, "_collapsed", refuses)
    arena = WeightArena("LLVM")
    kept = arena.buffer(dtypes.uint8, 40 * MB)
    arena.close()
    wait_for_large_pages()
    assert [address - asked[0] for address in asked] == [2 * MB * n for n in range(module._REFUSALS)]
    assert kept.whole.address <= asked[0] < kept.whole.address + 2 * MB


@needs_pages
@pytest.mark.parametrize(
    ("text", "may"), [("always madvise [never]\n", False), ("always [madvise] never\n", True), ("", False)]
)
def test_whoever_set_up_the_system_may_forbid_it(
    text: str, may: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "enabled"
    if text:
        path.write_text(text)
    monkeypatch.setattr(module, "_ENABLED", str(path))
    assert module._is_allowed() == may


@needs_pages
def test_where_no_thread_can_be_started_pages_come_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", start)
    arena = WeightArena("LLVM", [40 * MB] * 2)
    first, second = (arena.buffer(dtypes.uint8, 40 * MB) for _ in range(2))
    assert second.address == first.address + 40 * MB
    _fill(second, 3)
    assert second.host_array()[-1] == 3


@needs_pages
@pytest.mark.parametrize(("limits", "is_one"), [
    ({"max_alloc_bytes": 1 << 30}, True), ({"max_alloc_bytes": 70 * MB}, False), ({"is_host_visible": False}, False),
])  # fmt: skip
def test_one_mapping_is_what_the_device_takes(
    limits: dict[str, Any], is_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = get_device("LLVM")
    monkeypatch.setattr(device, "limits", Properties(**limits))
    arena = WeightArena("LLVM", [40 * MB] * 2)
    first, second = (arena.buffer(dtypes.uint8, 40 * MB) for _ in range(2))
    assert (first.whole is second.whole) == is_one
    assert (first.whole is first) == ("is_host_visible" in limits)


@needs_pages
def test_pages_go_to_the_system_and_not_to_whoever_asks_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of other sizes that follow each other had all their memory at once: each has a block of its own size."""
    monkeypatch.setattr(module, "_get_ahead", lambda *_: None)
    arena = WeightArena("LLVM", [40 * MB] * 2)
    buffer = arena.buffer(dtypes.uint8, 40 * MB)
    _fill(buffer, 3)
    del arena, buffer
    again = WeightArena("LLVM", [40 * MB] * 2).buffer(dtypes.uint8, 40 * MB)
    assert not again.host_array().any()


@needs_pages
@pytest.mark.parametrize("is_closed", [True, False])
def test_no_block_with_ordinary_pages_is_kept_for_reuse(is_closed: bool) -> None:
    """An arena dropped without close left its block with ordinary pages, to whoever requested that size next."""
    before = device._host_allocator().held_bytes()[1]
    arena = WeightArena("LLVM")
    buffer = arena.buffer(dtypes.uint8, 1000)
    if is_closed:
        arena.close()
    assert device._host_allocator().held_bytes()[0] >= 1000
    del arena, buffer
    assert device._host_allocator().held_bytes()[1] <= before


@needs_pages
def test_the_thread_that_gets_pages_keeps_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """It held the mapping while it slept: the memory of a model that was closed went up to a second later."""
    slept = list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        waiting.wait(20)

    waiting = threading.Event()
    monkeypatch.setattr(module, "_TOGETHER", (0, 0))  # nothing to get: it sleeps at once
    monkeypatch.setattr(time, "sleep", sleep)
    arena = WeightArena("LLVM", [4 * MB] * 20)
    whole = weakref.ref(arena.buffer(dtypes.uint8, 100).whole)
    limit = time.monotonic() + 20
    while not slept and time.monotonic() < limit:
        threading.Event().wait(1e-3)
    del arena
    assert slept
    assert whole() is None
    waiting.set()
