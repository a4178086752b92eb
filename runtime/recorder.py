"""What happened and when, while a profile is under way: launches, copies, compiles, waits, captures, memory.

`active` is the recorder, or None. Code that launches looks at it once for each batch; all other work of a profile is
done after it (kernmill/profiling). A run of a batch is a row of its `Tape`, which the native walk over the batch writes
itself; `Ran.runs` reads it. The clock is that of `time.perf_counter_ns`.
Tests: tests/runtime/test_recorder.py.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from kernmill.ir import GraphPlan, Kernel, MemoryPlan

from .tape import NO_VALUES, Lines, Run, Tape, Uses

if TYPE_CHECKING:
    from .device import Batch, Call, Device
    from .pages import Lowered

__all__ = ["Note", "Ran", "Recorder", "Span", "recording_profile", "span", "tick"]

_MOST_RUNS = 1_000_000  # that a recorder makes room for; later ones are counted and summed only
_NOTABLE_NS = 20_000  # of a driver, around kernels

active: Recorder | None = None


class Span(NamedTuple):
    """Something that took time on a thread: plan, compile, load, copy, wait, driver, capture. Units: ns, bytes."""

    kind: str
    name: str
    start_ns: int
    end_ns: int
    thread: int
    nbytes: int = 0
    line: str = ""


class Note(NamedTuple):
    """Something was made, and why. `kind`: capture, of a function, or plan, of the graph of a line."""

    kind: str
    name: str
    end_ns: int
    taken_ns: int
    compiled: int  # kernels that the disk cache did not have
    reason: str


@dataclass(slots=True, eq=False)
class Ran:
    """Kernels that were launched as one batch, and the clock of each time. `ends`: how many kernels precede the end of
    each entry of the clock; kernels of one entry run interleaved, as one."""

    device: str
    kernels: tuple[Kernel, ...]
    ends: tuple[int, ...]
    lines: Lines = None  # source lines of these runs by node, where they are not the plan's
    uses: Uses = ()
    runs: list[Run] = field(default_factory=list["Run"])
    more: int = 0  # runs without a clock, after too many
    more_ns: list[int] = field(default_factory=list[int])  # of each entry, in these

    def add(self, tape: Tape) -> None:
        """Add what a tape has."""
        self.uses = self.uses or tape.uses
        self.runs += tape.runs()
        self.more += tape.more
        self.more_ns = [a + b for a, b in zip(self.more_ns or [0] * len(self.ends), tape.more_ns, strict=True)]


class Recorder:
    """The events of one profile."""

    def __init__(self) -> None:
        self.start_ns = self.end_ns = perf_counter_ns()
        self.thread = threading.get_ident()
        self.tapes: list[Tape] = []
        self._known: dict[tuple[Any, ...], Tape] = {}  # of what runs once, by the identity of what a tape keeps alive
        self._batches: list[weakref.ref[Batch]] = []  # that have a tape
        self.count = 0
        self.spans: list[Span] = []
        self.notes: list[Note] = []
        self.memory: list[tuple[int, str, int]] = []  # clock, device, bytes of its tensors
        self.live_bytes = -1  # the last of these
        self.plans: list[tuple[str, GraphPlan, MemoryPlan]] = []  # made in this time, with their line
        self.ticks: list[tuple[int, str]] = []  # clock, what was counted: tokens
        self.texts: dict[tuple[str, bytes], Lowered] | None = None  # of compiled kernels, if a report will show them

    @property
    def ran(self) -> dict[tuple[Any, ...], Ran]:
        """All runs, equal batches as one; made from the tapes each time."""
        found: dict[tuple[Any, ...], Ran] = {}
        for tape in self.tapes:
            key = tape.device, tape.kernels, tape.ends, tape.lines
            found.setdefault(key, Ran(*key)).add(tape)
        return found

    def launch(
        self, batch: Batch, kernels: Sequence[Kernel], values: Mapping[str, int] = NO_VALUES, lines: Lines = None
    ) -> None:
        """Run a batch that will run again, and record it. `values`: of its variables; `lines`: of the nodes of this
        run's graph."""
        tape = batch.tape
        if tape is None or tape.owner is not self or tape.lines is not lines:
            tape = self._meet(batch, kernels, lines)
        batch.timed(tape)
        if (
            tape.values is values
            and tape.thread == get_ident()
            and tape.at != tape.last
            and not tape.has_driver
            and self.live_bytes == tape.memory.live_bytes
        ):  # as in most runs, nothing else is to be kept; a call less for each
            tape.at += tape.row_bytes
        else:
            self._keep(tape, values)

    def run(
        self,
        device: Device,
        calls: Sequence[Call],
        kernels: Sequence[Kernel],
        values: Mapping[str, int] = NO_VALUES,
        lines: Lines = None,
    ) -> None:
        """Run calls once and record them."""
        if device.limits.is_async:
            ends: Sequence[int] = range(1, len(calls) + 1)
            clock = [perf_counter_ns()]
            for took in device.run(calls, is_timed=True):
                clock.append(clock[-1] + took)
            tape = self._tape(device, (kernels, ends, lines))
            tape.write(clock)
            tape.has_driver = True
        else:
            batch = device.prepare(calls)
            tape = self._tape(device, (kernels, batch.ends, lines))
            batch.timed(tape)
        tape.uses = tape.uses or _uses_of(calls)
        self._keep(tape, values)

    def add(
        self, device: Device, kernels: Sequence[Kernel], clock: Sequence[int], values: Mapping[str, int] = NO_VALUES
    ) -> None:
        """Record one run of kernels one after another."""
        tape = self._tape(device, (kernels, range(1, len(clock)), None))
        tape.write(clock)
        self._keep(tape, values)

    def _meet(self, batch: Batch, kernels: Sequence[Kernel], lines: Lines) -> Tape:
        """Give a batch a tape for runs at these lines."""
        batch.tape = tape = self._add_tape(batch.device, (kernels, batch.ends, lines))
        tape.uses = _uses_of(batch.calls)
        self._batches.append(weakref.ref(batch))
        return tape

    def _add_tape(self, device: Device, of: tuple[Sequence[Kernel], Sequence[int], Lines]) -> Tape:
        self.tapes.append(tape := Tape(self, device.name, device.allocator, of))
        return tape

    def _tape(self, device: Device, of: tuple[Sequence[Kernel], Sequence[int], Lines]) -> Tape:
        """The tape of what this thread runs once, perhaps again: the kernels, the ends of the entries, and lines."""
        kernels, ends, lines = of
        known = get_ident(), device.name, id(lines), *map(id, kernels), *ends
        if (tape := self._known.get(known)) is None:
            tape = self._known[known] = self._add_tape(device, of)
        return tape

    def _keep(self, tape: Tape, values: Mapping[str, int]) -> None:
        """A run was written."""
        if tape.has_driver and perf_counter_ns() - (end_ns := tape.row()[-1]) > _NOTABLE_NS:
            self.span("driver", tape.device, end_ns)
        if self.count >= _MOST_RUNS:
            tape.sum_up()
            return
        self.count += 1 if tape.at != tape.last else tape.grow()
        if self.live_bytes != (memory := tape.memory.live_bytes):
            self.live_bytes = memory
            self.memory.append((tape.row()[-1], tape.device, memory))
        tape.keep(values)

    def finish(self) -> None:
        """Note the end."""
        self.end_ns = perf_counter_ns()
        for batch in filter(None, (ref() for ref in self._batches)):
            if batch.tape is not None and batch.tape.owner is self:
                batch.tape = None  # whoever has the profile keeps it

    def span(self, kind: str, name: str, start_ns: int, nbytes: int = 0, line: str | None = "") -> None:
        """Record what ends now on this thread."""
        now = perf_counter_ns()
        self.spans.append(Span(kind, name, start_ns, now, threading.get_ident(), nbytes, line or ""))

    def tick(self, what: str) -> None:
        """Count one of something, such as a token."""
        self.ticks.append((perf_counter_ns(), what))


def _uses_of(calls: Sequence[Call]) -> Uses:
    """The addresses of the buffers of a batch, some of which are slices; those of arguments are not known yet."""
    return tuple([tuple([(id(b.whole), b.address, b.address + b.nbytes) for b in call.buffers]) for call in calls])


def tick(what: str) -> None:
    """Count one of something, such as a token, if a recorder is active."""
    if active is not None:
        active.tick(what)


@contextmanager
def span(kind: str, name: Callable[[], str] | str, line: Callable[[], str | None] | None = None) -> Generator[None]:
    """Record a block of code that is not run often. The name is made only if a recorder is active."""
    if active is None:
        yield
        return
    now, start = active, perf_counter_ns()
    try:
        yield
    finally:
        if now is active:
            now.span(kind, name if isinstance(name, str) else name(), start, 0, None if line is None else line())


@contextmanager
def recording_profile() -> Generator[Recorder]:
    """Record everything that this process launches inside the block. An inner block records instead of an outer one,
    which has its events when it ends."""
    global active
    outside, active = active, Recorder()
    mine: Recorder = active
    mine.texts = None if outside is None else outside.texts
    try:
        yield mine
    finally:
        mine.finish()
        active = outside
        if outside is not None:
            _merge(outside, mine)


def _merge(outer: Recorder, inner: Recorder) -> None:
    outer.tapes += inner.tapes
    outer.count += inner.count
    outer.spans += inner.spans
    outer.notes += inner.notes
    outer.memory += inner.memory
    outer.plans += inner.plans
    outer.ticks += inner.ticks
