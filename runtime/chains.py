"""Chains: tile-wise fused launches, all of them on one tile of their data, then all of them on the next.

A kernel states what iteration t of its T accesses (compiler/kernel/locality.py): the t-th of T equal slices of a
buffer, or any element. Consecutive launches can run tile by tile if every buffer that one writes is used by the others
only in the same tile. Aliased buffers must coincide. A tile has as many slices as the cache has room for in all these
buffers, so that a launch finds there what the one before it wrote. Threads divide the slices once for the whole chain.
Why: docs/topics/threads.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any

from .device import Call, Program
from .memory.buffer import Buffer

__all__ = ["Chain", "find_chains"]

_WORTH_NS = 100_000.0  # estimated time of all launches above which the search for chains pays
_LEAST_NS = 300.0  # of a launch on one tile: twenty times what its call takes
_PARTS = 4  # that each thread finds


def find_chains(calls: Sequence[Call], caches: Sequence[int], threads: int) -> list[Chain]:
    """The launches as chains in order, some of one launch; nothing where all are. `caches`: bytes that a launch may
    leave to the next one, smallest first; where launches would have too little to do at a time, the next is taken."""
    if sum(call.program.work_ns for call in calls) < _WORTH_NS:
        return []
    found: list[Chain] = []
    for position, call in enumerate(calls):
        if not found or not found[-1].takes(call, caches, _PARTS * threads):
            found.append(Chain(position, position))
            if not found[-1].takes(call, caches, _PARTS * threads):
                found[-1] = Chain(position, position + 1, call.threads, call.threads, call.program.work_ns)
    return found if len(found) < len(calls) else []


@dataclass(slots=True)
class Chain:
    """Launches `first` to `end` over `parts` slices, `together` of which are a tile; all of it takes `work_ns`."""

    first: int
    end: int
    parts: int = 0
    together: int = 0
    work_ns: float = 0.0
    _memory: dict[int, tuple[int, str]] = field(default_factory=dict, compare=False)  # begin -> end, greatest letter
    _bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys("rsw", 0), compare=False)

    def chunk(self, *limits: Any) -> int:
        """As of one launch that does as much."""
        return self._call().chunk(*limits)

    def slice(self, chunk: int, slice_ns: float) -> int:
        """As of one launch that does as much."""
        return self._call().slice(chunk, slice_ns)

    def _call(self) -> Call:
        return Call(Program("chain", None, self.parts, self.work_ns), (), (), self.parts)

    def takes(self, call: Call, caches: Sequence[int], least_parts: int) -> bool:
        """Add a launch; where that cannot be or does not pay, the chain has come to its end."""
        parts, work_ns = gcd(self.parts, call.threads), self.work_ns + call.program.work_ns
        if not call.program.touched or parts < least_parts or not self._adds(call.buffers, call.program.touched):
            return False
        for cache in caches:
            together = min(parts, (cache - self._bytes["s"]) * parts // (self._bytes["r"] + self._bytes["w"]))
            if together > 0 and work_ns * together >= _LEAST_NS * parts * (self.end + 1 - self.first):
                self.end, self.parts, self.together, self.work_ns = self.end + 1, parts, together, work_ns
                return True
        return False

    def _adds(self, buffers: Sequence[Buffer], letters: str) -> bool:
        """Add these buffers; return True if all can run tile by tile, and slices of one of them were accessed
        before."""
        is_joined = self.end == self.first
        for buffer, letter in zip(buffers, letters, strict=True):
            begin = buffer.address or -id(buffer)  # buffers bound later do not alias others
            end = begin + (buffer.nbytes if buffer.address else 1)
            known, pair = self._memory.get(begin), letter
            if known is not None:
                pair += known[1]
                self._bytes[known[1]] -= buffer.nbytes
                is_joined |= "s" not in pair
            elif any(begin < other and at < end for at, (other, _) in self._memory.items()):
                return False
            if (known is not None and known[0] != end) or {*pair} == {"s", "w"}:
                return False
            self._memory[begin] = end, max(pair)
            self._bytes[max(pair)] += buffer.nbytes
        return is_joined
