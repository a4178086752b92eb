"""Memory of OpenCL devices: host memory that a driver uses directly, and a driver's own buffers, pooled.

A driver's buffer has no usable address, so each block gets a unique range of addresses. A Buffer inside it (a range of
a planned arena) is found by the difference.

Kernels have one queue, copies to and from the host another, so that they overlap. `last` is the event after which
nothing enqueued so far is running, since queues are in order. A block records it when it is returned, and a copy into
used memory waits for it. Kernels wait for the copies in `waits`.

A device that shares the host's memory copies nothing: its buffers are mapped for the host. They are written at once, or
read while a view of them is alive (kernels may read them, too). `_unmap` ends a mapping.
"""

from __future__ import annotations

import collections
import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kernmill.ir import taken

from ..memory.allocator import Block, HostAllocator, round_up
from .cl_driver import refuse_after_fork

if TYPE_CHECKING:
    from .cl_driver import ClFacts

__all__ = ["NO_ROOM", "ClAllocator", "ClBlock", "host_memory"]

_STEP = 4096
_STAGED = 64 << 20  # bytes on their way to the device, at most; a larger tensor is waited for
NO_ROOM = (-4, -5, -61)  # CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_RESOURCES, CL_INVALID_BUFFER_SIZE


class ClBlock(Block):
    """A driver's buffer and the range of addresses assigned to it."""

    __slots__ = ("after", "is_fresh", "memory")

    def __init__(self, memory: Any, address: int, capacity_bytes: int) -> None:
        self.memory, self.address, self.capacity_bytes = memory, address, capacity_bytes
        self.is_live, self.stamp, self.nbytes, self.goes_at_once = True, 0, 0, False
        self.is_fresh = True  # nothing was put here since it was handed out
        self.after: Any = None  # the event after which its last user is done with it

    def release(self) -> None:
        """To the driver, also where a launch still names it."""
        if self.memory is not None:
            self.memory.release()

    def husk(self) -> ClBlock:
        """As of any block."""
        found = ClBlock(None, 0, self.capacity_bytes)
        found.nbytes, found.goes_at_once = self.nbytes, True
        return found


def host_memory(cl: Any, context: Any, address: int, nbytes: int) -> Any:
    """Return the driver's object for host memory; the caller keeps that memory alive."""
    memory = (ctypes.c_char * max(1, nbytes)).from_address(address)
    return cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, hostbuf=memory)


class ClHostAllocator(HostAllocator):
    """Host memory that a driver works on, in pieces that it takes."""

    def __init__(self, facts: ClFacts, device: str) -> None:
        super().__init__(device=device)
        self.most_bytes = facts.max_alloc_bytes

    def alloc(self, nbytes: int) -> Block:
        """As for any memory. Raises DeviceError in a child of the process that opened the device."""
        refuse_after_fork(self._device)
        return super().alloc(nbytes)


class ClAllocator(HostAllocator):
    """Blocks of the driver's memory; any thread may call it."""

    step_bytes = _STEP

    def alloc(self, nbytes: int) -> Block:
        """As for any memory. Raises DeviceError in a child of the process that opened the device."""
        refuse_after_fork(self._device)
        return super().alloc(nbytes)

    def __init__(self, cl: Any, context: Any, queue: Any, facts: ClFacts, device: str) -> None:
        super().__init__(facts.total_bytes // 4, device=device)
        self.cl, self.context, self.queue, self.facts = cl, context, queue, facts
        self.most_bytes = facts.max_alloc_bytes
        self.copies = cl.CommandQueue(context, queue.device)
        self.last: Any = None
        self.waits: list[Any] = []
        self._writes: collections.deque[tuple[Any, int]] = collections.deque()
        self.seen: collections.deque[Any] = collections.deque()  # results of `map` without references
        self.unseen: collections.deque[Any] = collections.deque()  # as `seen`, by views that are gone
        self._next_address = _STEP

    def free(self, block: Block) -> None:
        """Return a block. Work enqueued before may still use it: kernels of its next owner come later in the queue,
        and copies into it for that one wait for `after`."""
        assert isinstance(block, ClBlock)
        block.after, block.is_fresh = self.last, True
        super().free(block)

    def new_block(self, capacity: int) -> ClBlock:
        """A buffer of the driver. Raises MemoryError."""
        flags = self.cl.mem_flags.READ_WRITE | (self.cl.mem_flags.ALLOC_HOST_PTR if self.facts.is_unified else 0)
        try:
            memory = self.cl.Buffer(self.context, flags, capacity)
        except self.cl.Error as error:
            if error.code in NO_ROOM:
                raise MemoryError(str(error)) from error
            raise
        with self._lock:
            address, self._next_address = self._next_address, self._next_address + round_up(capacity, _STEP)
        return ClBlock(memory, address, capacity)

    def trim(self, keep_bytes: int = 0) -> int:
        """Give cached blocks back to the driver, which may be using them."""
        trimmed = super().trim(keep_bytes)
        self.queue.finish()
        return trimmed

    def free_bytes(self) -> int:
        """Return the bytes that this process has not allocated, at most."""
        return self.facts.total_bytes - self._live_bytes - self._cached_bytes

    def total_bytes(self) -> int:
        """Return the driver's total."""
        return self.facts.total_bytes

    def begin(self) -> None:
        """Make later kernels see earlier copies. Called with the device's lock held, as `joined`."""
        if self.waits or self.seen or self.unseen:
            with self._lock:
                self._unmap()
                waits, self.waits = self.waits, []
                self.last = self.cl.enqueue_barrier(self.queue, wait_for=waits)

    def pending(self) -> list[Any]:
        """Return events after which all enqueued work is done, and all unused mappings are ended."""
        with self._lock:
            self._unmap()
            return [*([] if self.last is None else [self.last]), *self.waits]

    def joined(self, events: Sequence[Any]) -> None:
        """Record what was enqueued, here or in the queue of a device that reads here."""
        self.last = events[-1] if events else self.last

    def write(self, memory: Any, offset_bytes: int, source: memoryview, after: Sequence[Any]) -> None:
        """Copy bytes of the host into a buffer, while kernels run and the host continues: the transfer uses a copy.
        Shared memory is written by the host, once it is free."""
        if self.facts.is_unified:
            there = self.map(memory, offset_bytes, len(source), self.cl.map_flags.WRITE_INVALIDATE_REGION, after)
            memoryview(there)[:] = source
            self.seen.append(there)
            return
        is_large = len(source) > _STAGED
        copy = source if is_large else bytearray(source)
        event = self.cl.enqueue_copy(
            self.copies, memory, copy, dst_offset=offset_bytes, is_blocking=is_large, wait_for=after or None
        )
        self.copies.flush()
        with self._lock:
            self.waits.append(event)
            self._writes.append((event, 0 if is_large else len(copy)))
            done = self.cl.command_execution_status.COMPLETE
            while self._writes and self._writes[0][0].command_execution_status == done:
                self._writes.popleft()
            while sum(size for _, size in self._writes) > _STAGED:
                self._writes.popleft()[0].wait()

    def read(self, memory: Any, offset_bytes: int, target: memoryview) -> None:
        """A buffer into bytes of the host, once all that was enqueued before is done."""
        self.cl.enqueue_copy(
            self.copies, target, memory, src_offset=offset_bytes, is_blocking=True, wait_for=self.pending() or None
        )

    def map(self, memory: Any, offset_bytes: int, nbytes: int, flags: int, before: Sequence[Any]) -> Any:
        """A buffer's bytes as an array where the host sees them, once the events `before` have come."""
        with self._lock:
            self._unmap()
        return self.cl.enqueue_map_buffer(
            self.copies, memory, flags, offset_bytes, (nbytes,), "uint8", wait_for=before or None
        )[0]

    def _unmap(self) -> None:
        """End the mappings of unused views; kernels wait for it. Call with the lock held."""
        for shown in taken(self.unseen):
            self.seen.append(shown)
        while self.seen:
            self.waits.append(self.seen.popleft().base.release(self.copies))
            self.copies.flush()

    def _collect(self) -> None:
        self._unmap()
        super()._collect()
