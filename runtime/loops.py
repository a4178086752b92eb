"""Loops in a recording: one recorded body, launched again for each round, with the slices of that round as its buffers.

A loop is a function of buffers (`run_on_buffers`) that Python calls at each replay. Per round it writes addresses and
launches the body once. What one round hands to the next is in two sets of buffers, alternately.
Tests: tests/kernmill/functional/test_loops.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from .execute import allocate_buffer
from .memory.buffer import Buffer
from .plans.views import part_of
from .replay import Replay, copy_between, download_scalar

__all__ = ["BufferSlot", "LoopOf", "LoopWhile"]


class BufferSlot(NamedTuple):
    """Values that a body reads or writes in one round: `length` of them, in buffer `which` of the loop's sources or
    targets. They begin at `first`, and `step` values later in each next round."""

    which: int
    first: int = 0
    step: int = 0
    length: int = 0

    def of_round(self, buffers: Sequence[Buffer], number: int) -> Buffer:
        """The buffer of a round."""
        return part_of(buffers[self.which], self.first + number * self.step, self.length)


@dataclass(slots=True)
class LoopOf:
    """A loop of `rounds` rounds. The body's buffers are those of `reads`, then those of `writes`, then the carries
    before and after the round. `copies`: pairs of these, a buffer and a result of the same values. `begins` and
    `ends`: a carry before the first round and after the last one."""

    replay: Replay
    rounds: int
    is_reverse: bool
    reads: list[BufferSlot]
    writes: list[BufferSlot]
    begins: list[BufferSlot]
    ends: list[BufferSlot]
    copies: list[tuple[int, int]]
    spare: list[tuple[Buffer, Buffer]] = field(default_factory=list[tuple[Buffer, Buffer]])

    def __call__(self, targets: Sequence[Buffer], sources: Sequence[Buffer]) -> None:
        """Run all rounds."""
        first = [slot.of_round(sources, 0) for slot in self.begins]
        last = [slot.of_round(targets, 0) for slot in self.ends]
        if not self.spare and self.rounds > 1:
            self.spare = [(_like(carry), _like(carry)) for carry in first]
        between = [[pair[n % 2] for pair in self.spare] for n in range(self.rounds - 1)]
        for n, (before, after) in enumerate(pairwise([first, *between, last])):
            number = self.rounds - 1 - n if self.is_reverse else n
            reads = [slot.of_round(sources, number) for slot in self.reads]
            writes = [slot.of_round(targets, number) for slot in self.writes]
            _run_round(self.replay, [*reads, *writes, *before, *after], self.copies)


@dataclass(slots=True)
class LoopWhile:
    """A loop that goes on while a bool is true: the first source, then the first buffer that the body writes."""

    replay: Replay
    reads: list[BufferSlot]
    begins: list[BufferSlot]
    flag: Buffer
    copies: list[tuple[int, int]]
    spare: list[tuple[Buffer, Buffer]] = field(default_factory=list[tuple[Buffer, Buffer]])

    def __call__(self, targets: Sequence[Buffer], sources: Sequence[Buffer]) -> None:
        """Run rounds until the condition is false; then the carries are copied to the targets."""
        carries = [slot.of_round(sources, 0) for slot in self.begins]
        reads = [slot.of_round(sources, 0) for slot in self.reads]
        if not self.spare:
            self.spare = [(_like(carry), _like(carry)) for carry in carries]
        sets = _alternately(self.spare)
        goes_on = download_scalar(sources[0])
        while goes_on:
            after = next(sets)
            _run_round(self.replay, [*reads, self.flag, *carries, *after], self.copies)
            carries = after
            goes_on = download_scalar(self.flag)
        for target, carry in zip(targets, carries, strict=True):
            copy_between(target, carry)


def _alternately(pairs: Sequence[tuple[Buffer, Buffer]]) -> Iterator[list[Buffer]]:
    while True:
        for n in (0, 1):
            yield [pair[n] for pair in pairs]


def _run_round(replay: Replay, given: Sequence[Buffer], copies: Sequence[tuple[int, int]]) -> None:
    replay.run(given)
    for source, target in copies:
        copy_between(given[target], given[source])


def _like(buffer: Buffer) -> Buffer:
    return allocate_buffer(buffer.device, buffer.dtype, buffer.numel)
