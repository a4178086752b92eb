"""A captured plan as one call: record the launches of realize, then repeat them on other buffers.

A recording is a list of batches (kernels of one device), copies and checks over concrete buffers. A replay knows which
of those buffers move, that is, differ each time (inputs, state, results); it owns the others (intermediates,
constants).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, groupby
from time import perf_counter_ns
from typing import Any, NamedTuple, TypeAlias, TypeGuard

from kernmill.ir import Kernel, KernmillError, ShapeError, np, setting

from . import later, recorder
from .device import (
    Batch,
    BufferCopy,
    Call,
    Device,
    batch_of,
    failure,
    get_device,
    is_ours,
    read_buffer,
    write_buffer,
)
from .failed import check_failed, explained, failed_launch
from .lanes import LaneStep, settle
from .memory.buffer import Buffer
from .overlap import BEGIN, END, MemoryUse, overlapped
from .scratch import scratch_of
from .watch import wants_report

__all__ = [
    "Exchange", "HostCall", "Recording", "Replay", "call_host", "check_values", "copy_between", "current_recording",
    "download_scalar", "is_to_be_recorded", "narrow", "recording", "recording_apart", "rehearsal", "run_exchanges",
    "run_on_host",
]  # fmt: skip


HostFunction: TypeAlias = "Callable[[Sequence[Any], Sequence[Any]], None]"


class _Kernels(NamedTuple):
    device: str
    kernels: list[Kernel]
    calls: list[Call]


class _ReadyBatch(NamedTuple):
    """Kernels in the device's own format."""

    batch: Batch
    kernels: list[Kernel]


class _Copy(NamedTuple):
    target: Buffer
    source: Buffer
    is_kept: bool = False  # nothing else writes the target: while the source stays, the copy is made once


class _Check(NamedTuple):
    buffer: Buffer
    message: str


class HostCall(NamedTuple):
    """A function of the host among the launches: `function(outputs, inputs)` reads and writes 1-D NumPy arrays, the
    values of `sources` and of `targets` (bfloat16: as uint16). It writes all values of each output. With `on_buffers`
    it gets the buffers themselves, and launches kernels on them. `role`: it begins or ends an exchange on this memory
    (runtime/overlap.py)."""

    function: HostFunction
    targets: tuple[Buffer, ...]
    sources: tuple[Buffer, ...]
    on_buffers: bool = False
    role: str = "host"


class Exchange(NamedTuple):
    """Work that goes on while kernels run, such as a sum over machines: `begin(outputs, inputs)` starts it on the
    values of `sources` and `targets`, and `end` of the same returns when the outputs have their values."""

    begin: HostFunction
    end: HostFunction
    targets: tuple[Buffer, ...]
    sources: tuple[Buffer, ...]


class _Walk(NamedTuple):
    """Batches and copies as one batch; to be timed they run one by one."""

    batch: Batch
    parts: list[_ReadyBatch | _Copy]


_MOST_PLACES = 4  # of one buffer, that straight-line code writes one by one
_UNBOUND = -1  # instead of an address: while its locations are written, which Ctrl-C may interrupt


class _BoundCall(NamedTuple):
    """A function of the host, on arrays that are made once: between the sums of a model over ranks each microsecond
    counts."""

    call: Callable[[], None]


Step: TypeAlias = "_Kernels | _Copy | _Check | HostCall"
_Ready: TypeAlias = "_ReadyBatch | _Copy | _Check | HostCall | _BoundCall"


@dataclass(slots=True)
class Recording:
    """The launches in order. With `shares_numbers` the user's floats are arguments of its kernels. `on_realize` is
    called before anything is computed, with the buffers that are read."""

    steps: list[Step] = field(default_factory=list[Step])
    shares_numbers: bool = False
    on_realize: Callable[[Iterable[Buffer]], object] | None = None

    def add_kernels(self, device: str, batch: Sequence[tuple[Kernel, Call]]) -> None:
        """A batch was launched; batches of one device that follow each other are one."""
        last = self.steps[-1] if self.steps else None
        if not isinstance(last, _Kernels) or last.device != device:
            last = _Kernels(device, [], [])
            self.steps.append(last)
        last.kernels.extend(kernel for kernel, _ in batch)
        last.calls.extend(call for _, call in batch)

    def add_copy(self, target: Buffer, source: Buffer, *, is_kept: bool = False) -> None:
        """A buffer was copied to another device. `is_kept`: nothing else writes the target."""
        self.steps.append(_Copy(target, source, is_kept))

    def add_check(self, buffer: Buffer, message: str) -> None:
        """A bool was looked at after the run."""
        self.steps.append(_Check(buffer, message))

    def add_host_call(self, call: HostCall) -> None:
        """A function of the host ran on buffers."""
        self.steps.append(call)

    def with_buffers(self, other: Mapping[int, Buffer]) -> Recording:
        """The same launches on other buffers, by the identity of those that they replace."""

        def of(buffer: Buffer) -> Buffer:
            return other.get(id(buffer), buffer)

        steps: list[Step] = []
        for step in self.steps:
            if isinstance(step, _Copy):
                steps.append(step._replace(target=of(step.target), source=of(step.source)))
            elif isinstance(step, _Check):
                steps.append(step._replace(buffer=of(step.buffer)))
            elif isinstance(step, HostCall):
                targets, sources = (tuple(map(of, part)) for part in (step.targets, step.sources))
                steps.append(step._replace(targets=targets, sources=sources))
            else:
                calls = [call._replace(buffers=tuple([of(b) for b in call.buffers])) for call in step.calls]
                steps.append(step._replace(calls=calls))
        return Recording(steps, self.shares_numbers)

    def uses(self) -> Iterator[tuple[list[Buffer], list[Buffer]]]:
        """Yield for each launch, copy and check in order the buffers it uses, and those of them that it writes."""
        for step in self.steps:
            if isinstance(step, _Copy):
                yield [step.target, step.source], [step.target]
            elif isinstance(step, _Check):
                yield [step.buffer], []
            elif isinstance(step, HostCall):
                yield [*step.targets, *step.sources], [*step.targets]
            else:
                for kernel, call in zip(step.kernels, step.calls, strict=True):
                    positions = [kernel.buffers.index(number) for number in kernel.outputs]
                    yield list(call.buffers), [call.buffers[position] for position in positions]

    def overlapped(self) -> Recording:
        """The same launches, with exchanges that begin as early and end as late as the others allow."""
        if not any(isinstance(step, HostCall) and step.role == BEGIN for step in self.steps):
            return self
        singles: list[Step] = []
        for step in self.steps:
            if isinstance(step, _Kernels):
                singles += [_Kernels(step.device, [k], [c]) for k, c in zip(step.kernels, step.calls, strict=True)]
            else:
                singles.append(step)
        launches = [
            MemoryUse(*uses, step.role if isinstance(step, HostCall) else "check" if isinstance(step, _Check) else "")
            for step, uses in zip(singles, self.uses(), strict=True)
        ]
        found = Recording([], self.shares_numbers)
        for step in [singles[number] for number in overlapped(launches)]:
            if isinstance(step, _Kernels):
                found.add_kernels(step.device, [*zip(step.kernels, step.calls, strict=True)])
            elif isinstance(step, HostCall) and step.role == END and found.steps and _begins(found.steps[-1], step):
                found.steps[-1] = step._replace(function=partial(_in_turn, found.steps[-1].function, step.function))
            else:
                found.steps.append(step)
        return found

    def steps_in_lanes(self, of: Callable[[Buffer], Buffer]) -> list[LaneStep]:
        """Each batch and copy, with `of` each buffer that it reads or writes."""
        found: list[LaneStep] = []
        for step in self.steps:
            if isinstance(step, _Copy):
                found.append(LaneStep(step.target.device, [of(step.source)], [of(step.target)]))
            elif isinstance(step, _Kernels):
                reads, writes = dict[int, Buffer](), dict[int, Buffer]()
                for kernel, call in zip(step.kernels, step.calls, strict=True):
                    for number, buffer in zip(kernel.buffers, call.buffers, strict=True):
                        (writes if number in kernel.outputs else reads)[id(buffer)] = of(buffer)
                found.append(LaneStep(step.device, [*reads.values()], [*writes.values()]))
        return found

    def buffers(self) -> list[Buffer]:
        """Every buffer that some step touches, once."""
        return list({id(buffer): buffer for touched, _ in self.uses() for buffer in touched}.values())

    def kept(self) -> set[int]:
        """Identities of the targets of copies that later runs need not make, and that only their own device reads."""
        copied_on = {id(step.source) for step in self.steps if isinstance(step, _Copy)}
        return {id(s.target) for s in self.steps if isinstance(s, _Copy) and s.is_kept}.difference(copied_on)

    def written(self) -> set[int]:
        """Identities of the buffers that some step writes."""
        return {id(buffer) for _, outputs in self.uses() for buffer in outputs}

    @property
    def has_host_calls(self) -> bool:
        """True if functions of the host are among the steps."""
        return any(isinstance(step, HostCall) for step in self.steps)

    @property
    def kernel_count(self) -> int:
        """Kernels in the recording."""
        return sum(len(step.calls) for step in self.steps if isinstance(step, _Kernels))


class _Local(threading.local):
    recording: Recording | None = None
    is_rehearsal: bool = False


_local = _Local()


def current_recording() -> Recording | None:
    """The recording of this thread, if one is under way."""
    return _local.recording


def is_to_be_recorded() -> bool:
    """True if this thread's launches are recorded, now or next time: replays know buffers, not slices of them."""
    return _local.recording is not None or _local.is_rehearsal


@contextmanager
def rehearsal() -> Generator[None]:
    """Mark launches inside the block as those that will be repeated, and recorded then."""
    before, _local.is_rehearsal = _local.is_rehearsal, True
    try:
        yield
    finally:
        _local.is_rehearsal = before


@contextmanager
def recording(*, shares_numbers: bool = False) -> Generator[Recording]:
    """Record everything that this thread launches inside the block. With `shares_numbers` recordings that differ in
    Python floats only have the same kernels.

    Raises:
        KernmillError: another recording of this thread is under way.
    """
    if current_recording() is not None:
        raise KernmillError("recording: this thread is already recording. End it before starting another.")
    _local.recording = recorded = Recording(shares_numbers=shares_numbers)
    try:
        yield recorded
    finally:
        _local.recording = recorded.on_realize = None


@contextmanager
def recording_apart() -> Generator[Recording]:
    """Record what this thread launches inside the block for itself, also while another recording is under way."""
    before, _local.recording = _local.recording, Recording()
    try:
        yield _local.recording
    finally:
        _local.recording = before


class Replay:
    """A recording that runs again; the buffers in `moving` may be others each time, of equal device, dtype and size."""

    def __init__(self, recorded: Recording, moving: Sequence[Buffer]) -> None:
        recorded = recorded.overlapped()
        self._slots = {id(buffer): slot for slot, buffer in enumerate(moving)}
        self._binders: list[list[Callable[[Buffer], object]]] = [[] for _ in moving]
        # instead of moving buffers: the memory of the capture belongs to its user, and is not kept alive by us
        self.absent = [Buffer(b.device, b.dtype, b.numel, None, 0) for b in moving]
        self._slot_of_absent = {id(absent): slot for slot, absent in enumerate(self.absent)}
        self._scratch, self._inner = scratch_of(b for b in recorded.buffers() if id(b) not in self._slots)
        self.addresses = [_UNBOUND] * len(moving)
        self._setters: dict[str, list[Callable[[int], object]]] = {}
        self._bounds: dict[str, tuple[int, int]] = {}
        self._values: Mapping[str, int] = {}
        self.kernel_count = recorded.kernel_count
        self.kept_by_device, self.least_bytes = self._memory(recorded)
        self._address_cells: list[list[Any]] = [[] for _ in moving]
        self._parts: list[_Ready] = [self._prepared(step) for step in recorded.steps]
        self.has_checks = any(isinstance(step, _Check) for step in self._parts)
        self._steps = self._join_steps()
        for scratch in self._scratch:  # not before the batches are made, which look at memory
            scratch.give_back()
        only = self._steps[0] if len(self._steps) == 1 and not self._scratch else None
        self.is_checked = bool(setting("CHECK"))
        # if that is the only launch, and no more can happen in it than that memory is missing
        batch = only.batch if isinstance(only, _ReadyBatch | _Walk) and not self.is_checked else None
        is_plain = batch is not None and is_ours(batch.device) and not batch.device.limits.is_async
        self.batch = batch if is_plain else None
        self.only = only if is_plain and isinstance(only, _ReadyBatch) else None
        self.checks_last = isinstance(self._steps[-1], _Check) if self._steps else False
        self.is_bound_only = not self.is_checked and not any(
            isinstance(step, HostCall | _BoundCall) or any(id(part) in self._slot_of_absent for part in step)
            for step in self._steps
        )

    @property
    def kept_bytes(self) -> int:
        """Bytes of all owned buffers."""
        return sum(self.kept_by_device.values())

    def _memory(self, recorded: Recording) -> tuple[dict[str, int], int]:
        """Return the bytes of all owned buffers by device, and the peak of live bytes of them."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        kept = {id(b): b for b in recorded.buffers() if id(b) not in self._slots}
        written = recorded.written()
        parts = {key: id(b.owner) for key, b in kept.items() if id(b.owner) in kept}  # alive with it
        for time, (touched, _) in enumerate(recorded.uses()):
            for key in (parts.get(id(buffer), id(buffer)) for buffer in touched):
                first.setdefault(key, time if key in written else 0)
                last[key] = time if key in written else len(recorded.steps) << 32
        blocks: dict[tuple[str, int], int] = {}
        for whole in [buffer.whole for buffer in kept.values()]:
            place = whole.device, id(whole.owner)
            blocks[place] = max(whole.nbytes, blocks.get(place, 0))
        by_device: dict[str, int] = {}
        for (device, _), size_bytes in blocks.items():
            by_device[device] = by_device.get(device, 0) + size_bytes
        changes: dict[int, int] = {}
        for key in kept.keys() - parts:
            buffer = kept[key]
            changes[first[key]] = changes.get(first[key], 0) + buffer.nbytes
            changes[last[key] + 1] = changes.get(last[key] + 1, 0) - buffer.nbytes
        return by_device, max(accumulate(changes[time] for time in sorted(changes)), default=0)

    def standing(self, buffer: Buffer) -> Buffer:
        """Return the buffer, or its replacement."""
        if (inner := self._inner.get(id(buffer))) is not None:
            return inner[1]
        slot = self._slots.get(id(buffer))
        return buffer if slot is None else self.absent[slot]

    def _prepared(self, step: Step) -> _Ready:
        if isinstance(step, _Copy):
            return step._replace(target=self.standing(step.target), source=self.standing(step.source))
        if isinstance(step, _Check):
            return _Check(self.standing(step.buffer), step.message)
        if isinstance(step, HostCall):
            targets, sources = (tuple(map(self.standing, part)) for part in (step.targets, step.sources))
            buffers = (*step.targets, *step.sources)
            is_fixed = not any(id(b) in self._slots or id(b) in self._inner or not _is_plain(b) for b in buffers)
            prepared = step._replace(targets=targets, sources=sources)
            return _with_arrays(prepared) if is_fixed and not step.on_buffers else prepared
        calls = [c._replace(buffers=tuple(self.standing(b) for b in c.buffers)) for c in step.calls]
        batch = batch_of(get_device(step.device), calls)
        variables: dict[str, list[tuple[int, int]]] = {}
        for entry, call in enumerate(step.calls):
            for slot, buffer in enumerate(call.buffers):
                if (inner := self._inner.get(id(buffer))) is not None:
                    inner[0].bind(batch, entry, slot, inner[1])
                elif id(buffer) in self._slots:
                    self._binders[self._slots[id(buffer)]].append(batch.binder(entry, slot))
                    self._address_cells[self._slots[id(buffer)]].append(batch.place(entry, slot))
            narrow(self._bounds, step.kernels[entry].variables)
            for number, (name, _, _) in enumerate(step.kernels[entry].variables):
                variables.setdefault(name, []).append((entry, number))
        for name, arguments in variables.items():
            self._setters.setdefault(name, []).append(batch.setter(arguments))
        return _ReadyBatch(batch, step.kernels)

    def _join_steps(self) -> list[_Ready | _Walk]:
        """The steps, those of devices in one memory joined to one native call where some device can do that."""
        found: list[_Ready | _Walk] = []
        for is_native, group in groupby(self._parts, _is_native):
            steps = [*group]
            walk = self._native_walk([s for s in steps if isinstance(s, _ReadyBatch | _Copy)]) if is_native else None
            found += [walk] if walk is not None else steps
        return found

    def _native_walk(self, parts: list[_ReadyBatch | _Copy]) -> _Walk | None:
        """Native steps as one batch, with the addresses of its copies bound."""
        given = [
            step.batch if isinstance(step, _ReadyBatch) else BufferCopy(step.target, step.source) for step in parts
        ]
        batches = [step.batch for step in parts if isinstance(step, _ReadyBatch)]
        joined = next(filter(None, (b.joined(given) for b in batches)), None) if len(parts) > 1 else None
        if joined is None:
            return None
        copies = [step[:2] for step in parts if isinstance(step, _Copy)]
        for entry, slot, buffer in [(entry, slot, copy[slot]) for entry, copy in enumerate(copies) for slot in (0, 1)]:
            moving = self._slot_of_absent.get(id(buffer))
            if moving is not None:
                self._binders[moving].append(joined.binder(entry, slot))
                self._address_cells[moving].append(joined.place(entry, slot))
            for scratch in self._scratch:
                if buffer.whole is scratch.arena:
                    scratch.bind(joined, entry, slot, buffer)
        return _Walk(joined, parts)

    def run(
        self, given: Sequence[Buffer], values: Mapping[str, int] | None = None, slots: Iterable[int] | None = None
    ) -> None:
        """Launch everything with these moving buffers, and these values of variables. `slots`: those of them that may
        differ from the last run; None: all.

        Raises:
            IndexRangeError: a recorded check failed.
            ShapeError: a variable has no value, or one outside its bounds.
        """
        self.set_variables(values or {})
        for slot in range(len(given)) if slots is None else slots:
            if given[slot].address != self.addresses[slot]:
                self.bind(slot, given[slot])
        self.launch(given)

    def bind(self, slot: int, buffer: Buffer) -> None:
        """Bind another buffer to the slot of a moving one."""
        self.addresses[slot] = _UNBOUND
        for bind in self._binders[slot]:
            bind(buffer)
        self.addresses[slot] = buffer.address

    def places(self, slot: int) -> list[Any] | None:
        """Return the locations of a moving buffer's address: arrays and indices in them, to be written as `bind`
        does it, with `addresses` unbound meanwhile. None: `bind` must be called."""
        found = self._address_cells[slot]
        return None if len(found) > _MOST_PLACES or None in found else found

    def launch(self, given: Sequence[Buffer], *, is_timed: bool | None = None) -> None:
        """Launch everything with the current binding. `is_timed`: whether times are wanted, if known."""
        is_timed = wants_report() if is_timed is None else is_timed
        settle()
        try:
            self.take()
            self._launch(given, is_timed=is_timed)
        finally:
            self.give_back()

    def record(self, now: object) -> None:
        """Launch what is `only` one batch with the current binding. `now`: the recorder, or what else asks for it."""
        if self.only is None or not isinstance(now, recorder.Recorder):
            self.launch(())
            return
        try:
            now.launch(self.only.batch, self.only.kernels, self._values)
        except Exception as error:
            raise explained(failed_launch(self.only.batch.device, error, self.only.kernels)) from error

    def take(self) -> list[Any]:
        """Take memory for intermediates that are not kept; return what owns it. Raises OutOfMemoryError."""
        for scratch in self._scratch:
            scratch.take()
        return [scratch.arena.owner for scratch in self._scratch]

    def give_back(self) -> None:
        """Let others have that memory, after those who hold what `take` returned."""
        for scratch in self._scratch:
            scratch.give_back()

    def actions(self, given: Sequence[Buffer]) -> list[Callable[[], object]]:
        """The launches and copies in order with these moving buffers, each to be called in its device's lane."""
        return [
            step.batch.run if isinstance(step, _ReadyBatch) else self._copying(step, given)
            for step in self._parts if isinstance(step, _ReadyBatch | _Copy)
        ]  # fmt: skip

    def _copying(self, step: _Copy, given: Sequence[Buffer]) -> Callable[[], object]:
        target, source = self._now(step.target, given), self._now(step.source, given)
        return partial(_copy, target, source, is_kept=step.is_kept, is_ordered=True)

    def check(self, given: Sequence[Buffer]) -> None:
        """Look at the values that were recorded to be checked. Raises IndexRangeError."""
        for step in self._steps:
            if isinstance(step, _Check):
                self._run_other(step, given, is_timed=False)

    def _launch(self, given: Sequence[Buffer], *, is_timed: bool) -> None:
        is_whole = not is_timed and recorder.active is None and not self.is_checked
        for step in self._steps if is_whole else self._parts:
            if isinstance(step, _BoundCall):
                step.call()
                continue
            if isinstance(step, _Copy | _Check | HostCall):
                self._run_other(step, given, is_timed=is_timed)
                continue
            try:
                if isinstance(step, _Walk) or is_whole:
                    step.batch.run()
                else:
                    self._launch_seen(step, given, is_timed=is_timed)
            except Exception as error:
                raise explained(failed_launch(step.batch.device, error, _kernels_of(step))) from error

    def _launch_seen(self, step: _ReadyBatch, given: Sequence[Buffer], *, is_timed: bool) -> None:
        """Launch kernels that are checked, timed or recorded."""
        device = step.batch.device
        if self.is_checked and device.name != "PYTHON":
            for kernel, call in zip(step.kernels, step.batch.calls, strict=True):
                buffers = tuple([self._now(buffer, given) for buffer in call.buffers])
                values = tuple([self._values.get(name, 0) for name, _, _ in kernel.variables])
                later.check.run_checked(device, kernel, call._replace(buffers=buffers, variables=values))
        elif is_timed:
            later.kernel_report.report(device, step.kernels, step.batch.run(is_timed=True), self._values)
        elif recorder.active is not None:
            recorder.active.launch(step.batch, step.kernels, self._values)
        else:
            step.batch.run()

    def set_variables(self, values: Mapping[str, int]) -> None:
        """Give variables their values.

        Raises:
            ShapeError: one has none, or one outside its bounds.
        """
        if not self._setters:
            return
        check_values(self._bounds, values)
        before, self._values = self._values, {}  # none is known until all are given
        for name, setters in self._setters.items():
            if before.get(name) != values[name]:
                for give in setters:
                    give(values[name])
        self._values = dict(values)

    def _run_other(self, step: _Copy | _Check | HostCall, given: Sequence[Buffer], *, is_timed: bool) -> None:
        """A copy, a check or a function of the host."""
        if isinstance(step, _Copy):
            _copy(*[self._now(b, given) for b in step[:2]], is_kept=step.is_kept, is_timed=is_timed)
        elif isinstance(step, HostCall):
            targets, sources = ([self._now(b, given) for b in part] for part in (step.targets, step.sources))
            call_host(step._replace(targets=tuple(targets), sources=tuple(sources)))
        elif download_scalar(self._now(step.buffer, given)):
            raise check_failed(step.message)

    def _now(self, buffer: Buffer, given: Sequence[Buffer]) -> Buffer:
        """A buffer of a step, or the one that stands for it in this call."""
        slot = self._slot_of_absent.get(id(buffer))
        return buffer if slot is None else given[slot]


def _begins(step: Step, end: HostCall) -> TypeGuard[HostCall]:
    """True if a step begins the exchange that ends in `end`."""
    if not isinstance(step, HostCall) or step.role != BEGIN:
        return False
    return step.targets == end.targets and step.sources == end.sources


def _in_turn(begin: HostFunction, end: HostFunction, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
    begin(outputs, inputs)
    end(outputs, inputs)


def _is_plain(buffer: Buffer) -> bool:
    """True if an array of the memory is right at any time: the host sees it, and waits for all kernels."""
    limits = get_device(buffer.device).limits
    return limits.is_host_visible and not limits.is_async


def _with_arrays(call: HostCall) -> _BoundCall:
    """The same call on arrays that are made once."""
    outputs, inputs = ([read_buffer(get_device(b.device), b) for b in some] for some in (call.targets, call.sources))
    return _BoundCall(partial(call.function, outputs, inputs))


def _kernels_of(step: _ReadyBatch | _Walk) -> list[Kernel]:
    parts = [step] if isinstance(step, _ReadyBatch) else step.parts
    return [kernel for part in parts if isinstance(part, _ReadyBatch) for kernel in part.kernels]


def _is_native(step: _Ready) -> bool:
    """True if the step can be an entry of a native table."""
    if isinstance(step, _ReadyBatch):
        return step.batch.native() is not None
    if not isinstance(step, _Copy):
        return False
    group = get_device(step.target.device).limits.group
    return bool(group) and group == get_device(step.source.device).limits.group


def narrow(bounds: dict[str, tuple[int, int]], variables: Iterable[tuple[str, int, int]]) -> None:
    """Intersect the bounds of variables by name."""
    for name, least, greatest in variables:
        low, high = bounds.get(name, (least, greatest))
        bounds[name] = max(low, least), min(high, greatest)


def check_values(bounds: Mapping[str, tuple[int, int]], values: Mapping[str, int]) -> None:
    """Raises ShapeError for a variable without a value or with one outside its bounds."""
    for name, (least, greatest) in bounds.items():
        if not least <= values.get(name, least - 1) <= greatest:
            raise ShapeError(
                f"realize: the size {name} is {values.get(name, 'nothing')}. Give it a value from {least} to "
                f"{greatest}."
            )


def copy_between(target: Buffer, source: Buffer, *, is_timed: bool = False, is_ordered: bool = False) -> None:
    """A buffer into another of the same size; with `is_timed` it is waited for and reported. `is_ordered`: the caller
    waited for the kernels and copies that use this memory."""
    if not source.numel:
        return
    device, other = get_device(target.device), get_device(source.device)
    start = 0
    try:
        if not is_ordered:
            settle((target.device, source.device))
            source.wait()
            other.finish_before_copy()
            device.finish_before_copy()
        if is_timed or recorder.active is not None:
            other.synchronize()
            device.synchronize()
            start = perf_counter_ns()
        device.copy_from(target, source, other)
        if is_timed or recorder.active is not None:
            device.synchronize()
        if is_timed:
            later.kernel_report.report_copy(target, source, perf_counter_ns() - start)
        if (now := recorder.active) is not None and start:
            now.span("copy", f"{source.device} -> {target.device}", start, source.nbytes)
    except Exception as error:  # whatever a device's own code raises
        raise failure(device, error, f"a copy of {source.nbytes:,} bytes from {other.name}") from error


def call_host(call: HostCall) -> None:
    """Run the function once all that writes its buffers is done; outputs on devices that the host cannot see are
    copied there."""
    settle()
    if call.on_buffers:
        call.function(call.targets, call.sources)
        return
    inputs = [read_buffer(get_device(buffer.device), buffer) for buffer in call.sources]
    outputs: list[Any] = []
    for buffer in call.targets:
        device = get_device(buffer.device)
        is_seen = device.limits.is_host_visible
        array = read_buffer(device, buffer) if is_seen else np.empty(buffer.numel, buffer.dtype.stored_as)
        outputs.append(array)
    call.function(outputs, inputs)
    if call.role == BEGIN:
        return
    for buffer, array in zip(call.targets, outputs, strict=True):
        device = get_device(buffer.device)
        if buffer.numel and not device.limits.is_host_visible:
            write_buffer(device, buffer, array.data.cast("B"))


def run_on_host(
    function: Callable[[Sequence[Any], Sequence[Any]], None],
    targets: Sequence[Buffer],
    sources: Sequence[Buffer],
    *,
    on_buffers: bool = False,
) -> None:
    """Run a function of the host on buffers now, and again in each replay of a recording that is under way."""
    call = HostCall(function, tuple(targets), tuple(sources), on_buffers)
    call_host(call)
    if (record := current_recording()) is not None:
        record.add_host_call(call)


def run_exchanges(exchanges: Sequence[Exchange]) -> None:
    """Begin and end exchanges now; in each replay of a recording that is under way kernels run between."""
    calls = [HostCall(one.begin, one.targets, one.sources, role=BEGIN) for one in exchanges]
    calls += [HostCall(one.end, one.targets, one.sources, role=END) for one in exchanges]
    for call in calls:
        call_host(call)
        if (record := current_recording()) is not None:
            record.add_host_call(call)


def _copy(target: Buffer, source: Buffer, *, is_kept: bool, is_timed: bool = False, is_ordered: bool = False) -> None:
    """Copy between devices, unless the target has these values since an earlier run."""
    if not is_kept or not target.is_copy_of(source):
        copy_between(target, source, is_timed=is_timed, is_ordered=is_ordered)
        if is_kept:
            target.note_copy_of(source)


def download_scalar(buffer: Buffer) -> bool:
    """Return the bool in a buffer of one element."""
    device = get_device(buffer.device)
    buffer.wait()
    if device.limits.is_host_visible and type(device).host_array is Device.host_array:  # no array for one value
        device.synchronize()
        return bool(ctypes.c_uint8.from_address(buffer.address).value)
    return bool(read_buffer(device, buffer)[0])
