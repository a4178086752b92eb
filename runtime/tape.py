"""The clock of launches while a profile is under way: an array for each batch, which the launches write themselves.

Tests: tests/runtime/test_recorder.py.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from threading import get_ident
from typing import TypeAlias

from kernmill.ir import Kernel

from .memory.allocator import HostAllocator

__all__ = ["NO_VALUES", "Lines", "Run", "Tape", "Uses"]

Lines: TypeAlias = "Sequence[str | None] | None"
Uses: TypeAlias = (
    "tuple[tuple[tuple[int, int, int], ...], ...]"  # of each kernel: of its buffers which memory, begin, end
)
Run: TypeAlias = "tuple[int, Sequence[int], Mapping[str, int]]"  # thread, clock, values of variables
NO_VALUES: Mapping[str, int] = {}
_FIRST_ROWS = 16  # of a tape


class Tape:
    """The clock of the runs of one batch in one array: of each run a row, with the ns before the first entry and after
    each. One thread writes at a time, as long as it runs the batch."""

    __slots__ = ("at", "begin", "clock", "device", "ends", "has_driver", "kernels", "last", "lines", "memory", "more",
                 "more_ns", "owner", "row_bytes", "thread", "threads", "uses", "values", "worth")  # fmt: skip

    def __init__(
        self, owner: object, device: str, memory: HostAllocator, of: tuple[Sequence[Kernel], Sequence[int], Lines]
    ) -> None:
        self.owner, self.device, (kernels, ends, self.lines) = owner, device, of
        self.kernels, self.ends, self.row_bytes = tuple(kernels), tuple(ends), 8 * (len(ends) + 1)
        self.uses: Uses = ()
        self.memory, self.has_driver = memory, False  # that submits, and compiles at a first launch
        self.clock = array("q")
        self.begin = self.at = self.last = 0  # addresses of the first row, the next one, and the last one
        self.thread: int | None = None  # of the last run, and the values of its variables
        self.values: Mapping[str, int] | None = None
        self.threads: list[tuple[int, int]] = []  # where others begin: the row, and which
        self.worth: list[tuple[int, Mapping[str, int]]] = []
        self.more, self.more_ns = 0, [0] * len(ends)
        self.grow()

    def grow(self) -> int:
        """Make room for twice as many runs; return for how many more."""
        used, more = self.used, max(_FIRST_ROWS * self.row_bytes, 8 * len(self.clock))
        self.clock.frombytes(bytes(more))
        self.begin, count = self.clock.buffer_info()
        self.at, self.last = self.begin + used, self.begin + 8 * count - self.row_bytes
        return more // self.row_bytes

    @property
    def used(self) -> int:
        """The bytes of the rows that are written."""
        return self.at - self.begin

    def write(self, clock: Sequence[int]) -> None:
        """Write the clock of the next run."""
        begin = self.used // 8
        self.clock[begin : begin + len(clock)] = array("q", clock)

    def row(self) -> array[int]:
        """The clock of the next run, which was written."""
        return self.clock[self.used // 8 : (self.used + self.row_bytes) // 8]

    def keep(self, values: Mapping[str, int]) -> None:
        """A run was written, on this thread and with these values of its variables. There is room for the next one."""
        if self.thread != (thread := get_ident()):
            self.thread = thread
            self.threads.append((self.used, thread))
        if self.values is not values:
            self.values = values
            self.worth.append((self.used, values))
        self.at += self.row_bytes

    def sum_up(self) -> None:
        """A run was written whose clock is not kept."""
        self.more += 1
        self.more_ns = [old + b - a for old, (a, b) in zip(self.more_ns, pairwise(self.row()), strict=True)]

    def runs(self) -> Iterator[Run]:
        """The runs that were written; not one that was interrupted."""
        threads, worth = dict(self.threads), dict(self.worth)
        thread, values = 0, NO_VALUES
        for begin in range(0, self.used, self.row_bytes):
            thread, values = threads.get(begin, thread), worth.get(begin, values)
            clock = self.clock[begin // 8 : (begin + self.row_bytes) // 8]
            if clock[-1]:
                yield thread, clock, values
