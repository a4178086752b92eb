"""class WeightArena: memory for what is written once and read often: side by side, in large pages if they are quick.

What is read from beginning to end lies best in large pages, but fresh ones may be slow to get (a virtual machine's host
gives memory when it is touched): one that was slow is followed by ordinary ones.
"""

from __future__ import annotations

import mmap
import time

from kernmill.ir import DType, dtypes

from .allocator import ALIGNMENT_BYTES, Block
from .buffer import Buffer
from .execute import allocate_buffer

__all__ = ["WeightArena"]

_WHOLE_BYTES = 64 << 20  # of one mapping: what is not used of it costs no memory
_LARGE_PAGE = 2 << 20
_ORDINARY, _LARGE = (getattr(mmap, f"MADV_{name}HUGEPAGE", -1) for name in ("NO", ""))
_SLOW_S = 1e-3  # to touch a large page; 0.1 to 0.3 ms where the memory is there
_PATIENCE = 32  # pages that are ordinary ones after a slow one


class WeightArena:
    """Buffers side by side. Their memory goes back when all that lie in one mapping, and the arena, are gone."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._whole: Buffer | None = None  # the mapping that is being filled
        self._filled = 0  # bytes of it
        self._wait = 0  # pieces of the size of a large page
        self._is_open = _ORDINARY >= 0

    def buffer(self, dtype: DType, count: int) -> Buffer:
        """As `allocate_buffer`, beside the one before; by itself where the system or the device knows no such pages."""
        size = -(-count * dtype.size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if self._is_open and (self._whole is None or self._filled + size > self._whole.numel):
            self.close()
            self._whole, self._filled = allocate_buffer(self.device, dtypes.uint8, max(size, _WHOLE_BYTES)), 0
            self._is_open = self._whole.owner.block.advise(_ORDINARY)
        if not self._is_open or self._whole is None:
            self._whole = None
            return allocate_buffer(self.device, dtype, count)
        whole, at = self._whole, self._filled
        self._filled += size
        for start in range(at + -(whole.address + at) % _LARGE_PAGE, at + size, _LARGE_PAGE):
            if start + _LARGE_PAGE <= whole.numel:
                self._touch(whole.owner.block, start)
        return Buffer(self.device, dtype, count, whole, whole.address + at)

    def close(self) -> None:
        """All that lies there is written: from now on the system may make large pages of the others."""
        if self._whole is not None:
            self._whole.owner.block.advise(_LARGE)
            self._whole = None

    def _touch(self, block: Block, start: int) -> None:
        """Get a large page for the piece that begins there, or leave it to ordinary ones for now."""
        self._wait -= 1
        if self._wait > 0:
            return
        block.advise(_LARGE, start, _LARGE_PAGE)
        before = time.perf_counter()
        block.view()[start] = 0
        if time.perf_counter() - before > _SLOW_S:
            self._wait = _PATIENCE
