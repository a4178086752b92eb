"""The memory of a session: pieces that the host maps too, and which of their pages are free.

Tensors are copied by the host alone then. A piece has a page before and behind all blocks, since a load of a vector
may read up to a vector's bytes around the lanes that it needs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Final

__all__ = ["LARGEST_BLOCK", "SESSION_PAGE", "SESSION_PIECES", "SharedMemory", "piece_sizes"]

SESSION_PAGE: Final = 4096
LARGEST_BLOCK: Final = 1 << 30  # of a block
SESSION_PIECES: Final = 16
_LEAST_BYTES: Final = 32 << 20  # of a piece that is cut


class SharedMemory:
    """Blocks of whole pages, by their addresses in the session. `enter(number, size)` maps a piece there, and returns
    its address and the host's view of it, or None."""

    def __init__(self, limit_bytes: int, enter: Callable[[int, int], tuple[int, memoryview] | None]) -> None:
        self.sizes = piece_sizes(limit_bytes)
        self.enter = enter
        self.pieces: list[tuple[int, memoryview]] = []
        self.free_parts: list[tuple[int, int]] = []  # address and size, by address

    def take(self, size: int) -> int:
        """Return the address of a free block: the first that fits, else in the next piece; 0 if there is none."""
        for number, (address, room) in enumerate(self.free_parts):
            if room >= size:
                self.free_parts[number : number + 1] = [(address + size, room - size)] if room > size else []
                return address
        number = len(self.pieces)
        if number == len(self.sizes) or self.sizes[number] < size + 2 * SESSION_PAGE:
            return 0
        found = self.enter(number, self.sizes[number])
        if found is None:  # the session has no room for it: two of half the size
            half = (self.sizes[number] // 2 - SESSION_PAGE) // SESSION_PAGE * SESSION_PAGE
            if half < _LEAST_BYTES or len(self.sizes) == SESSION_PIECES:
                return 0
            self.sizes[number : number + 1] = [half + 2 * SESSION_PAGE] * 2
            return self.take(size)
        self.pieces.append(found)
        self.give(found[0] + SESSION_PAGE, self.sizes[number] - 2 * SESSION_PAGE)
        return self.take(size)

    def give(self, address: int, size: int) -> None:
        """Free a block, and join it with free neighbours."""
        insort(self.free_parts, (address, size))
        at = bisect_left(self.free_parts, (address, size))
        for first in (at, at - 1):
            if 0 <= first < len(self.free_parts) - 1:
                (start, length), (following, more) = self.free_parts[first : first + 2]
                if start + length == following:
                    self.free_parts[first : first + 2] = [(start, length + more)]

    def view(self, address: int, size: int) -> memoryview:
        """The bytes of a block, for the host."""
        start, piece = next((start, piece) for start, piece in self.pieces if start <= address < start + len(piece))
        return piece[address - start :][:size]


def piece_sizes(limit_bytes: int) -> list[int]:
    """The sizes of pieces for that many bytes, each with its margins. Small blocks fill the first."""
    whole, rest = divmod(-(-limit_bytes // SESSION_PAGE) * SESSION_PAGE, LARGEST_BLOCK)
    return [size + 2 * SESSION_PAGE for size in (rest, *[LARGEST_BLOCK] * whole) if size]
