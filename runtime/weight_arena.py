"""class WeightArena: memory that is written once and read often: contiguous, in huge pages if they are fast to get.

Data that is read sequentially is best in huge pages, but fresh ones may be slow to get. A virtual machine's host
provides memory at the first access, 4 KB at a time. A thread pre-faults pages before they are written, huge ones as
long as they take no longer than ordinary ones do. After all is written, another thread converts the others to huge
pages. Why: docs/topics/memory.md. Tests: tests/runtime/test_weight_arena.py.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import time
import weakref
from collections.abc import Callable, Sequence

from kernmill.ir import DType, KernmillError, dtypes

from .cpu.elf import libc
from .cpu.pool import expect_pool, touch
from .device import get_device
from .execute import allocate_buffer
from .memory.allocator import ALIGNMENT_BYTES, LARGE_PAGES, HostAllocator, Lease, round_up
from .memory.buffer import Buffer

__all__ = ["WeightArena", "wait_for_large_pages"]

_WHOLE_BYTES = 64 << 20  # of a mapping, if no more is expected: unused memory of it costs nothing
_LARGE_PAGE = 2 << 20
_COLLAPSE = 25  # Linux's MADV_COLLAPSE, for which Python's mmap has no name
_ENABLED = "/sys/kernel/mm/transparent_hugepage/enabled"
_ORDINARY, _GONE = (getattr(mmap, f"MADV_{name}", -1) for name in ("NOHUGEPAGE", "DONTNEED"))
_TOGETHER = (32, 4)  # large pages' worth that is touched in one call: by ordinary pages, by large ones
_SLOW = 2  # times what ordinary pages take
_MORE = 4  # times as many ordinary pages after each large one that was slow
_PAUSES_S = 1e-3, 0.1  # between looks at an arena that is not filled meanwhile: first, and at most
_AFTER_S = 1.0  # the first words come before larger pages
_PAUSE = 2  # times as long as getting a large page took, before the next one
_REFUSALS = 8  # one after the other, from which on no other is tried

_enlarging: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


class WeightArena:
    """Contiguous buffers. Their memory is freed after all buffers in one mapping, and the arena."""

    def __init__(self, device: str, expected: Sequence[int] = ()) -> None:
        """`expected`: bytes of the buffers to come, whose pages are got from now on."""
        self.device = device
        self._whole: Buffer | None = None  # the mapping that is being filled
        self._filled = self._last = 0  # bytes of it, and of the last buffer
        self._full: list[tuple[weakref.ref[Buffer], int]] = []  # mappings that are not filled any more, and their bytes
        self._left = [round_up(size, ALIGNMENT_BYTES) for size in expected]  # of those that are not written yet
        limits = get_device(device).limits
        self._is_open = _ORDINARY >= 0 and limits.is_host_visible
        self._is_open &= get_device(device).allocator.frees_by_itself  # pages of the system, which listens to advice
        if self._is_open and _WHOLE_BYTES < sum(self._left) <= limits.max_alloc_bytes:
            self._begin(sum(self._left))
            if self._whole is not None:
                _start(_get_ahead, weakref.ref(self), weakref.ref(self._whole))

    def buffer(self, dtype: DType, count: int) -> Buffer:
        """Like `allocate_buffer`, after the previous one; separately if the system or the device has no such pages."""
        size = round_up(count * dtype.size_bytes, ALIGNMENT_BYTES)
        if self._is_open and (self._whole is None or self._filled + size > self._whole.numel):
            self._begin(max(size, _WHOLE_BYTES))
        if self._whole is None:
            return allocate_buffer(self.device, dtype, count)
        if self._last in self._left:
            self._left.remove(self._last)
        at, self._filled, self._last = self._filled, self._filled + size, size
        return Buffer(self.device, dtype, count, self._whole, self._whole.address + at)

    def close(self) -> None:
        """End the arena after all is written: the other pages are soon converted to huge ones."""
        self._end()
        if self._full and _is_allowed() and (thread := _start(_enlarge, self._full)) is not None:
            _enlarging.add(thread)
        self._full = []

    def _end(self) -> None:
        if self._whole is not None and self._whole.block is not None:
            self._whole.block.advise(LARGE_PAGES)
            self._full.append((weakref.ref(self._whole), self._filled))
        self._whole = None

    def _begin(self, size: int) -> None:
        """Start another mapping. Its pages are returned to the system when it is unused: the next model has other
        sizes."""
        self._end()
        memory = get_device(self.device).allocator
        block = memory.alloc(size)

        block.goes_at_once = True
        whole = Buffer(self.device, dtypes.uint8, size, Lease(block, memory.free), block.address)
        self._is_open = block.advise(_ORDINARY)
        self._whole, self._filled = whole if self._is_open else None, 0


def wait_for_large_pages() -> None:
    """Wait for the huge pages of all closed arenas: for measurements of read speed."""
    for thread in [*_enlarging]:
        thread.join()


def _start(work: Callable[..., None], *args: object) -> threading.Thread | None:
    """None where no thread can be started: then pages are as they come."""
    thread = threading.Thread(target=work, args=args, daemon=True)
    with contextlib.suppress(RuntimeError):
        thread.start()
        return thread
    return None


def _get_ahead(arena: weakref.ref[WeightArena], mapping: weakref.ref[Buffer]) -> None:
    """Pre-fault the pages of a mapping that are not written yet, while the arena fills it. The source of the largest
    remaining buffer takes as much memory as itself, which is left free for it."""
    whole = mapping()
    if whole is None or whole.block is None:
        return
    with contextlib.suppress(KernmillError):  # without machine code: later users get the error
        expect_pool()  # in a separate process if it must be compiled: LLVM takes 60 MB
        touch(whole.address, 1)
        at, is_large, left, wait, ordinary_s, pause_s = -whole.address % _LARGE_PAGE, False, 1, _MORE, 0.0, _PAUSES_S[0]
        while (of := arena()) is not None and (whole := mapping()) is not None and of._whole is whole:
            if whole.block is None or at + _LARGE_PAGE > whole.numel:
                break
            at = max(at, at + (of._filled - of._last - at) // _LARGE_PAGE * _LARGE_PAGE)
            count = min(left, _TOGETHER[is_large], (whole.numel - max(of._left, default=0) - at) // _LARGE_PAGE)
            del of  # the sleeping thread must not keep the arena or the memory alive
            if count <= 0:  # for the user's first words it may be minutes
                del whole
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSES_S[1])
                continue
            pause_s, begun = _PAUSES_S[0], time.thread_time()  # wall time would count other processes
            if is_large:
                whole.block.advise(LARGE_PAGES, at, count * _LARGE_PAGE)
            touch(whole.address + at, count * _LARGE_PAGE)
            page_s = (time.thread_time() - begun) / count
            at, left = at + count * _LARGE_PAGE, left - count
            if not is_large:
                is_large, left, ordinary_s = left == 0, left or 1, page_s
            elif page_s <= _SLOW * ordinary_s:
                left = 2 * count
            else:
                is_large, left, wait = False, wait, _MORE * wait


def _is_allowed() -> bool:
    """True if the system has huge pages, and its configuration allows them: the call itself does not check."""
    try:
        with open(_ENABLED, encoding="ascii") as file:
            return "[never]" not in file.read()
    except OSError:
        return False


def _enlarge(mappings: Sequence[tuple[weakref.ref[Buffer], int]]) -> None:
    """Convert ordinary pages of live mappings to huge ones, for a third of the time at most. Readers wait while one
    is copied, but not for the host: the system reuses the page that was freed last."""
    time.sleep(_AFTER_S)
    refused = 0
    with contextlib.suppress(KernmillError, OSError, MemoryError):
        spare = HostAllocator().new_block(2 * _LARGE_PAGE)
        for mapping, filled in mappings:
            at = None
            while (whole := mapping()) is not None and refused < _REFUSALS:
                at = -whole.address % _LARGE_PAGE if at is None else at + _LARGE_PAGE
                if at + _LARGE_PAGE > filled:
                    break
                begun = time.perf_counter()
                touch(round_up(spare.address, _LARGE_PAGE), 1)
                spare.advise(_GONE)
                refused = 0 if _collapsed(whole.address + at, _LARGE_PAGE) else refused + 1
                del whole
                time.sleep(_PAUSE * (time.perf_counter() - begun))


def _collapsed(address: int, size: int) -> bool:
    """True if the system moved this memory into a huge page; it may be busy. Other threads run meanwhile."""
    return bool(libc().madvise(address, size, _COLLAPSE) == 0)
