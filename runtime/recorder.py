"""What happened and when, while a profile is under way: launches, copies, compiles, waits, captures, memory.

`active` is the recorder, or None. Code that launches looks at it once for each batch; all other work of a profile is
done after it (kernmill/profiling). A batch of launches is two tuples and the clock's values: nothing is computed from
them before `Ran.durations`. The clock is that of `time.perf_counter_ns`.
Tests: tests/runtime/test_recorder.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from kernmill.ir import GraphPlan, Kernel, MemoryPlan

if TYPE_CHECKING:
    from .device import Batch, Call, Device
    from .memory.buffer import Buffer
    from .pages import Lowered

__all__ = ["Note", "Ran", "Recorder", "Span", "recording_profile", "span", "tick"]

_MOST_RUNS = 1_000_000  # batches that a recorder keeps the clock of; later ones are counted and summed only
_NOTABLE_NS = 20_000  # of a driver, around kernels

active: Recorder | None = None


Lines: TypeAlias = "Sequence[str | None] | None"
Run: TypeAlias = "tuple[int, Sequence[int], Mapping[str, int]]"  # thread, clock, values of variables
_NO_VALUES: Mapping[str, int] = {}


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
    uses: tuple[tuple[int, ...], ...] = ()  # of each kernel: its buffers, numbered within the batch
    runs: list[Run] = field(default_factory=list["Run"])
    more: int = 0  # runs without a clock, after too many
    more_ns: list[int] = field(default_factory=list[int])  # of each entry, in these


class Recorder:
    """The events of one profile."""

    def __init__(self) -> None:
        self.start_ns = self.end_ns = perf_counter_ns()
        self.thread = threading.get_ident()
        self.ran: dict[tuple[Any, ...], Ran] = {}
        self._known: dict[tuple[Any, ...], tuple[Ran, Any]] = {}  # by the identity of what is kept alive here
        self.count = 0
        self.spans: list[Span] = []
        self.notes: list[Note] = []
        self.memory: list[tuple[int, str, int]] = []  # clock, device, bytes of its tensors
        self.plans: list[tuple[str, GraphPlan, MemoryPlan]] = []  # made in this time, with their line
        self.ticks: list[tuple[int, str]] = []  # clock, what was counted: tokens
        self.texts: dict[tuple[str, bytes], Lowered] | None = None  # of compiled kernels, if a report will show them

    def launch(
        self, batch: Batch, kernels: Sequence[Kernel], values: Mapping[str, int] = _NO_VALUES, lines: Lines = None
    ) -> None:
        """Run a batch and record it. `values`: of its variables; `lines`: of the nodes of this run's graph."""
        clock, ends = batch.timed()
        self._note_driver(batch.device, clock[-1])
        ran = self.add(batch.device, (kernels, ends, lines), clock, values)
        if not ran.uses:
            _note_uses(ran, batch.calls)

    def run(
        self,
        device: Device,
        calls: Sequence[Call],
        kernels: Sequence[Kernel],
        values: Mapping[str, int] = _NO_VALUES,
        lines: Lines = None,
    ) -> None:
        """Run calls once and record them."""
        if device.limits.is_async:
            clock = [perf_counter_ns()]
            for took in device.run(calls, is_timed=True):
                clock.append(clock[-1] + took)
            self._note_driver(device, clock[-1])
            ran = self.add(device, (kernels, range(1, len(clock)), lines), clock, values)
            if not ran.uses:
                _note_uses(ran, calls)
        else:
            self.launch(device.prepare(calls), kernels, values, lines)

    def _note_driver(self, device: Device, end_ns: int) -> None:
        """Record the time of a launch that is not in its kernels: the driver submits, and compiles at the first one."""
        if perf_counter_ns() - end_ns > _NOTABLE_NS:
            self.span("driver", device.name, end_ns)

    def add(
        self,
        device: Device,
        of: tuple[Sequence[Kernel], Sequence[int], Lines],
        clock: Sequence[int],
        values: Mapping[str, int] = _NO_VALUES,
    ) -> Ran:
        """Record one run of a batch: `of` are its kernels, the ends of its entries, and lines."""
        kernels, ends, lines = of
        known = device.name, id(lines), *map(id, kernels), *ends
        if (found := self._known.get(known)) is None:
            key = device.name, tuple(kernels), tuple(ends), lines
            found = self._known[known] = self.ran.setdefault(key, Ran(*key)), (tuple(kernels), lines)
        ran = found[0]
        if self.count < _MOST_RUNS:
            self.count += 1
            ran.runs.append((threading.get_ident(), clock, values))
            memory = device.allocator.live_bytes
            if not self.memory or self.memory[-1][2] != memory:
                self.memory.append((clock[-1], device.name, memory))
            return ran
        took = [after - before for before, after in pairwise(clock)]
        ran.more += 1
        ran.more_ns = [a + b for a, b in zip(ran.more_ns, took, strict=True)] if ran.more_ns else took
        return ran

    def finish(self) -> None:
        """Note the end."""
        self.end_ns = perf_counter_ns()

    def copied(self, target: Buffer, source: Buffer, start_ns: int) -> None:
        """Record a copy between devices that ends now."""
        self.span("copy", f"{source.device} -> {target.device}", start_ns, source.nbytes)

    def span(self, kind: str, name: str, start_ns: int, nbytes: int = 0, line: str | None = "") -> None:
        """Record what ends now on this thread."""
        now = perf_counter_ns()
        self.spans.append(Span(kind, name, start_ns, now, threading.get_ident(), nbytes, line or ""))

    def tick(self, what: str) -> None:
        """Count one of something, such as a token."""
        self.ticks.append((perf_counter_ns(), what))


def _note_uses(ran: Ran, calls: Sequence[Call]) -> None:
    """Number the buffers of a batch."""
    numbers: dict[int, int] = {}
    ran.uses = tuple([tuple([numbers.setdefault(id(b), len(numbers)) for b in call.buffers]) for call in calls])


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
    for key, ran in inner.ran.items():
        known = outer.ran.setdefault(key, Ran(ran.device, ran.kernels, ran.ends, ran.lines))
        known.uses = known.uses or ran.uses
        known.runs += ran.runs
        known.more += ran.more
        if ran.more:
            known.more_ns = [a + b for a, b in zip(known.more_ns or [0] * len(ran.more_ns), ran.more_ns, strict=True)]
    outer.count += inner.count
    outer.spans += inner.spans
    outer.notes += inner.notes
    outer.memory += inner.memory
    outer.plans += inner.plans
    outer.ticks += inner.ticks
