"""class Room: memory for what is written once and read again and again: side by side, and in large pages in time.

What is read from beginning to end lies best in large pages, but fresh ones may be slow to get (a virtual machine's host
gives memory when it is touched). So they are tried until one was slow; then most are ordinary ones at first, and
`settle` makes large ones of them.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator

from kernmill.ir import DType, dtypes
from kernmill.runtime import Buffer, allocate_buffer, allocator

__all__ = ["Room"]

_WHOLE_BYTES = 64 << 20  # of one mapping: what is not used of it costs no memory
_LARGE_PAGE = 2 << 20
_ORDINARY, _LARGE = (getattr(mmap, f"MADV_{name}HUGEPAGE", -1) for name in ("NO", ""))
_COLLAPSE = 25  # Linux 6.1: make a large page of these now
_SLOW_S = 1e-3  # to touch a large page; 0.1 to 0.3 ms where the memory is there
_PATIENCE = 32  # pages that are ordinary ones after a slow one
_SHARE = 1 / 32  # of the time since the first step: more would be seen while text is made


class Room:
    """Buffers side by side. Their memory goes back when all that lie in one mapping, and the room, are gone."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._parts: list[tuple[Buffer, allocator.Block]] = []
        self._filled: list[int] = []  # bytes of each
        self._wait = 0
        self._is_open = _ORDINARY >= 0

    def buffer(self, dtype: DType, count: int) -> Buffer:
        """As `allocate_buffer`, beside the one before; by itself where the system or the device knows no such pages."""
        size = -(-count * dtype.size_bytes // allocator.ALIGNMENT_BYTES) * allocator.ALIGNMENT_BYTES
        if self._is_open and (not self._parts or self._filled[-1] + size > self._parts[-1][0].numel):
            whole = allocate_buffer(self.device, dtypes.uint8, max(size, _WHOLE_BYTES))
            self._is_open = whole.owner.block.advise(_ORDINARY)
            if self._is_open:
                self._parts.append((whole, whole.owner.block))
                self._filled.append(0)
        if not self._is_open:
            return allocate_buffer(self.device, dtype, count)
        whole, block = self._parts[-1]
        at = self._filled[-1]
        self._filled[-1] += size
        for start in range(at + -(block.address + at) % _LARGE_PAGE, at + size, _LARGE_PAGE):
            if start + _LARGE_PAGE <= whole.numel:
                self._touch(block, start)
        return Buffer(self.device, dtype, count, whole, whole.address + at)

    def _touch(self, block: allocator.Block, start: int) -> None:
        """Get a large page for the piece that begins there, or leave it to ordinary ones for now."""
        self._wait -= 1
        if self._wait > 0:
            return
        block.advise(_LARGE, start, _LARGE_PAGE)
        before = time.perf_counter()
        block.view()[start] = 0
        if time.perf_counter() - before > _SLOW_S:
            self._wait = _PATIENCE

    def settle(self) -> Iterator[None]:
        """Make large pages of what is there, at most one at each step and not faster than `_SHARE` allows: one is 0.6
        ms of copying, or 7 where memory must be got first. It ends where the system refuses, and in a forked child,
        which shares the pages with its parent.
        """
        process, begin, spent = os.getpid(), time.perf_counter(), 0.0
        for (_, block), filled in zip(self._parts, self._filled, strict=True):
            block.advise(_LARGE)
            for start in range(-block.address % _LARGE_PAGE, filled - _LARGE_PAGE + 1, _LARGE_PAGE):
                while spent > _SHARE * ((now := time.perf_counter()) - begin):
                    yield
                if os.getpid() != process or not block.advise(_COLLAPSE, start, _LARGE_PAGE):
                    return
                spent += time.perf_counter() - now
                yield
