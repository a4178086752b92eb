"""Memory that is reused: the host's for CPU devices, aligned; and any device's own, behind the same buckets.

Fresh pages cost three times the work of a large elementwise kernel (the system zeroes each on first touch). A freed
block is therefore pooled in a bucket of its size for the next request. Large blocks request huge pages. Kernels never
read past the end of a block, as for borrowed memory.
"""

from __future__ import annotations

import collections
import ctypes
import gc
import mmap
import os
import threading
from collections.abc import Callable
from typing import Any

from kernmill.ir import InternalError, LazyModule, OutOfMemoryError, keep_until_death, process_lock, taken

from .holders import largest_holders

__all__ = [
    "ALIGNMENT_BYTES", "LARGE_PAGES", "SMALLER", "Block", "CachedBlock", "CachingAllocator", "HostAllocator", "Lease",
    "available_memory", "finishing", "round_up", "total_memory",
]  # fmt: skip

ALIGNMENT_BYTES = 64
LARGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", -1)  # -1: no system listens to that
_LARGE_BYTES = 1 << 20
SMALLER = "Use smaller batches or a smaller dtype, or drop tensors that are no longer needed."
_MOST_CAPACITIES = 4096
_STEPS_LOG2 = 3  # buckets per doubling: at most one eighth of a block is slack, and untouched slack costs no memory


finishing: list[Callable[[], object]] = []  # called to finish all work under way: memory is short, a device is closed


class Block:
    """The memory of one buffer. Its contents are those of its last user."""

    __slots__ = ("_memory", "address", "capacity_bytes", "goes_at_once", "is_live", "nbytes", "stamp", "wrapped")

    def __init__(self, memory: mmap.mmap | bytearray | None, capacity_bytes: int) -> None:
        start = 0 if memory is None else ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._memory = memory
        self.goes_at_once = False  # the system has its memory back as soon as its lease is gone
        self.is_live = True
        self.stamp = 0  # the allocator's: when it was freed
        self.address = round_up(start, ALIGNMENT_BYTES)
        self.capacity_bytes = capacity_bytes
        self.nbytes = 0
        self.wrapped: Any = None  # a driver's object over this memory: it lives as long

    def release(self) -> None:
        """Release the block after its last use: the system's memory is freed with the object."""

    def husk(self) -> Block:
        """The figures of this block without its memory, by which the allocator counts it as freed."""
        found = Block(None, self.capacity_bytes)
        found.nbytes, found.goes_at_once = self.nbytes, True
        return found

    def advise(self, advice: int, start: int = 0, size: int | None = None) -> bool:
        """Tell the system how these pages are used; False where it does not listen."""
        memory: Any = self._memory
        try:
            memory.madvise(advice, start, len(memory) - start if size is None else size)
        except (AttributeError, OSError):  # other memory than the system's; an older system
            return False
        return True


class Lease:
    """A block in use. It is returned after the last reference: at the next allocation, since no Python code may run
    when an object dies, where a Ctrl-C would be lost."""

    __slots__ = ("__weakref__", "block")

    def __init__(self, block: Block, give_back: Callable[[Block], None]) -> None:
        self.block = block
        keep_until_death(self, (give_back, block.husk() if getattr(block, "goes_at_once", False) else block), _unused)


_logging: Any = LazyModule("logging")  # as rare as slow to import
_unused: collections.deque[Any] = collections.deque()


def take_back() -> None:
    """Give back the blocks of all leases that are gone."""
    if _unused:
        for give_back, block in taken(_unused):
            try:
                give_back(block)
            except Exception as error:  # of one device, and whoever allocates now may need another one
                _logging.getLogger("kernmill").warning(f"memory was not taken back ({type(error).__name__}: {error})")


class HostAllocator:
    """Allocates and caches blocks; any thread may call it. Other memory than the system's is a subclass."""

    step_bytes = ALIGNMENT_BYTES  # no block is smaller
    most_bytes = 1 << 62  # of a block
    no_room: tuple[type[Exception], ...] = (OSError, MemoryError, OverflowError, ValueError)  # from `new_block`
    frees_by_itself = True  # the memory of a block goes back to the system when the object dies

    def __init__(self, cache_limit_bytes: int | None = None, *, device: str = "LLVM") -> None:
        self.cache_limit_bytes = total_memory() // 4 if cache_limit_bytes is None else cache_limit_bytes
        self._device = device
        self._lock = process_lock(threading.Lock)
        self._returned: collections.deque[Block] = collections.deque()
        self._free: dict[int, list[Block]] = {}  # capacity -> blocks, the most recently freed (still in cache) last
        self._capacities: dict[int, int] = {}  # of sizes that were requested before
        self._live_bytes = self._cached_bytes = self._clock = 0

    def alloc(self, nbytes: int) -> Block:
        """A block of at least `nbytes`, 64-byte aligned, from the cache if one of its size is there.

        Raises:
            OutOfMemoryError: the system has no room even after the cache was emptied.
        """
        if nbytes < 0:
            raise InternalError(f"alloc: {nbytes} bytes. A size was computed wrongly; please report it.")
        take_back()
        capacity = self._capacities.get(nbytes) or self.bucket_bytes(nbytes)
        with self._lock:
            if self._returned:
                self._collect()
            blocks = self._free.get(capacity)
            block = blocks.pop() if blocks else None
            if block is not None:
                self._cached_bytes -= capacity
                self._live_bytes += nbytes
        if block is None:
            block = self._map(nbytes, capacity)
            with self._lock:
                self._live_bytes += nbytes
                if len(self._capacities) < _MOST_CAPACITIES:
                    self._capacities[nbytes] = capacity
        block.nbytes, block.is_live = nbytes, True
        block.goes_at_once = capacity > self.cache_limit_bytes and self.frees_by_itself
        return block

    def free(self, block: Block) -> None:
        """Give a block back. Its address may be handed out again at once.

        Raises:
            InternalError: it was given back before.
        """
        if not block.is_live:
            raise InternalError(f"free: the block at {block.address:#x} was freed before. Please report it.")
        block.is_live = False
        # the garbage collector may call this inside any method below, with the lock held: then the block is only queued
        self._returned.append(block)
        if self._lock.acquire(blocking=False):
            try:
                self._collect()
            finally:
                self._lock.release()

    def trim(self, keep_bytes: int = 0) -> int:
        """Return cached blocks to the system, the least recently freed first; how many bytes that were."""
        take_back()
        with self._lock:
            self._collect()
            before = self._cached_bytes
            while self._cached_bytes > keep_bytes:
                self._drop_oldest()
            return before - self._cached_bytes

    @property
    def live_bytes(self) -> int:
        """The bytes of live blocks as of the last allocation: blocks that nobody has any more may still count."""
        return self._live_bytes

    def held_bytes(self) -> tuple[int, int]:
        """Return the current bytes of live blocks, as requested, and of pooled blocks."""
        take_back()
        with self._lock:
            self._collect()
            return self._live_bytes, self._cached_bytes

    def _collect(self) -> None:
        """Pool the returned blocks. Call with the lock held."""
        while self._returned:
            block = self._returned.popleft()
            self._live_bytes -= block.nbytes
            if not block.goes_at_once:
                self._clock += 1
                block.stamp = self._clock
                self._free.setdefault(block.capacity_bytes, []).append(block)
                self._cached_bytes += block.capacity_bytes
                while self._cached_bytes > self.cache_limit_bytes:
                    self._drop_oldest()

    def _drop_oldest(self) -> None:
        capacity = min((blocks[0].stamp, capacity) for capacity, blocks in self._free.items() if blocks)[1]
        blocks = self._free[capacity]
        blocks.pop(0).release()
        self._cached_bytes -= capacity
        if not blocks:
            del self._free[capacity]

    def _map(self, nbytes: int, capacity: int) -> Block:
        """Make a block. If memory is short, empty the pool, then collect tensors in reference cycles, and make it no
        larger than needed."""
        if nbytes > self.most_bytes:
            raise OutOfMemoryError(
                f"{self._device}: a buffer of {nbytes:,} bytes exceeds the largest allocation "
                f"({self.most_bytes:,} bytes). {largest_holders(self._device)}Use smaller tensors, or another device."
            )
        for make_room in (self.trim, self._collect_garbage):
            try:
                return self.new_block(capacity)
            except self.no_room:
                make_room()
                capacity = min(capacity, round_up(max(nbytes, 1), self.step_bytes))
        try:
            return self.new_block(capacity)
        except self.no_room as error:
            text = f"{self._device}: out of memory: a buffer of {_human(nbytes)} cannot be allocated. {self.figures()} "
            raise OutOfMemoryError(f"{text}{largest_holders(self._device)}{SMALLER}") from error

    def _collect_garbage(self) -> None:
        for finish in finishing:
            finish()
        gc.collect()
        self.trim()

    def figures(self) -> str:
        """Return used and free memory, for an error message."""
        live, cached = self.held_bytes()
        held = f"held by live buffers: {_human(live)}; kept for reuse: {_human(cached)}"
        of = f" of {_human(total)}" if (total := self.total_bytes()) else ""
        return f"Free: {_human(self.free_bytes())}{of}; {held}."

    # --- methods that other kinds of memory override
    def bucket_bytes(self, nbytes: int) -> int:
        """Round up to one of eight sizes per doubling, in whole steps, but not above the largest allocation."""
        least = max(nbytes, self.step_bytes)
        step = max(self.step_bytes, 1 << max(0, (least - 1).bit_length() - 1 - _STEPS_LOG2))
        return min(round_up(least, step), max(nbytes, self.most_bytes))

    def new_block(self, capacity: int) -> Block:
        """Allocate memory of the system. Raises OSError, MemoryError, OverflowError or ValueError if there is none."""
        if capacity < _LARGE_BYTES:
            return Block(bytearray(capacity + ALIGNMENT_BYTES), capacity)
        size = round_up(capacity, mmap.PAGESIZE)
        if os.name == "nt":
            return Block(mmap.mmap(-1, size), capacity)
        block = Block(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), capacity)
        block.advise(LARGE_PAGES)  # a system without them gives ordinary ones
        return block

    def free_bytes(self) -> int:
        """Return the free bytes of the system."""
        return available_memory()

    def total_bytes(self) -> int:
        """Return the total bytes; 0: unknown."""
        return total_memory()


class CachedBlock(Block):
    """A device's own block, in the buckets of a CachingAllocator."""

    __slots__ = ("_give_back", "own")

    def __init__(self, own: Any, capacity_bytes: int, release: Callable[[Any], None]) -> None:
        self.own, self.address, self.capacity_bytes, self._give_back = own, own.address, capacity_bytes, release
        self.is_live, self.stamp, self.nbytes, self.goes_at_once, self.wrapped = True, 0, 0, False, None

    def release(self) -> None:
        """To the device."""
        own, self.own = self.own, None
        self._give_back(own)


class CachingAllocator(HostAllocator):
    """A pool of a device's blocks: a training step then makes no allocation on the device.

    `new` allocates a block, with an `address`, or raises OutOfMemoryError or MemoryError; `release` frees it, in any
    thread, but never during Python's garbage collection. `limits`: the device's `Properties`.
    """

    frees_by_itself = False
    no_room = (MemoryError,)

    def __init__(
        self,
        new: Callable[[int], Any],
        release: Callable[[Any], None],
        limits: Any,
        *,
        device: str,
        free: Callable[[], int] = lambda: 0,
    ) -> None:
        self.limits, self._free_now = limits, free
        total = limits.total_bytes
        super().__init__(total // 4 if total else 1 << 62, device=device)
        self._new, self._release = new, release
        self.step_bytes, self.most_bytes = max(1, self.limits.alignment), self.limits.max_alloc_bytes

    def new_block(self, capacity: int) -> Block:
        """A block of the device. Raises MemoryError."""
        if sum(self.held_bytes()) + capacity > self.limits.max_mapped_bytes:
            raise MemoryError
        return CachedBlock(self._new(capacity), capacity, self._release)

    def free_bytes(self) -> int:
        """Return what the device says, at most what may be mapped in addition."""
        return int(min(self._free_now(), self.limits.max_mapped_bytes - sum(self.held_bytes())))

    def total_bytes(self) -> int:
        """Return the device's total."""
        return int(self.limits.total_bytes)


def round_up(size: int, step: int) -> int:
    """The next multiple of the step."""
    return -(-size // step) * step


def total_memory() -> int:
    """Bytes that the machine has; 4 GiB where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 4 << 30


def available_memory() -> int:
    """Return the bytes that the system can provide now: free pages, and reclaimable file pages."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except (OSError, ValueError):
        pass
    return total_memory()


def _human(nbytes: int) -> str:
    value, unit = float(nbytes), "bytes"
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{nbytes} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
