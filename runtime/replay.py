"""A captured schedule as one call: record the launches of realize, then repeat them on other buffers.

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
from itertools import accumulate
from time import perf_counter_ns
from typing import Any, NamedTuple, TypeAlias

from kernmill.ir import Kernel, KernmillError, ShapeError, check_failed, np

from . import later, recorder
from .device import Batch, Call, Device, batch_of, failure, get_device, read_buffer, write_buffer
from .memory.buffer import Buffer
from .scratch import scratch_of
from .watch import wants_report

__all__ = [
    "HostCall", "Recording", "Replay", "call_host", "check_values", "copy_between", "current_recording",
    "download_scalar", "is_to_be_recorded", "narrow", "recording", "rehearsal", "run_on_host",
]  # fmt: skip


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


class _Check(NamedTuple):
    buffer: Buffer
    message: str


class HostCall(NamedTuple):
    """A function of the host among the launches: `function(outputs, inputs)` reads and writes 1-D NumPy arrays, the
    values of `sources` and of `targets` (bfloat16: as uint16). It writes all values of each output."""

    function: Callable[[Sequence[Any], Sequence[Any]], None]
    targets: tuple[Buffer, ...]
    sources: tuple[Buffer, ...]


_MOST_PLACES = 4  # of one buffer, that straight-line code writes one by one
_UNBOUND = -1  # instead of an address: while its locations are written, which Ctrl-C may interrupt

Step: TypeAlias = "_Kernels | _Copy | _Check | HostCall"


@dataclass(slots=True)
class Recording:
    """The launches in order. With `shares_numbers` the user's floats are arguments of its kernels."""

    steps: list[Step] = field(default_factory=list[Step])
    shares_numbers: bool = False

    def add_kernels(self, device: str, batch: Sequence[tuple[Kernel, Call]]) -> None:
        """A batch was launched; batches of one device that follow each other are one."""
        last = self.steps[-1] if self.steps else None
        if not isinstance(last, _Kernels) or last.device != device:
            last = _Kernels(device, [], [])
            self.steps.append(last)
        last.kernels.extend(kernel for kernel, _ in batch)
        last.calls.extend(call for _, call in batch)

    def add_copy(self, target: Buffer, source: Buffer) -> None:
        """A buffer was copied to another device."""
        self.steps.append(_Copy(target, source))

    def add_check(self, buffer: Buffer, message: str) -> None:
        """A bool was looked at after the run."""
        self.steps.append(_Check(buffer, message))

    def add_host_call(self, call: HostCall) -> None:
        """A function of the host ran on buffers."""
        self.steps.append(call)

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
                    places = [kernel.buffers.index(number) for number in kernel.outputs]
                    yield list(call.buffers), [call.buffers[place] for place in places]

    def buffers(self) -> list[Buffer]:
        """Every buffer that some step touches, once."""
        return list({id(buffer): buffer for touched, _ in self.uses() for buffer in touched}.values())

    def written(self) -> set[int]:
        """Identities of the buffers that some step writes."""
        return {id(buffer) for _, outputs in self.uses() for buffer in outputs}

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
    _local.recording = Recording(shares_numbers=shares_numbers)
    try:
        yield _local.recording
    finally:
        _local.recording = None


class Replay:
    """A recording that runs again; the buffers in `moving` may be others each time, of equal device, dtype and size."""

    def __init__(self, recorded: Recording, moving: Sequence[Buffer]) -> None:
        self._slots = {id(buffer): slot for slot, buffer in enumerate(moving)}
        self._binders: list[list[Callable[[Buffer], object]]] = [[] for _ in moving]
        # instead of moving buffers: the memory of the capture belongs to its user, and is not kept alive by us
        self._absent = [Buffer(b.device, b.dtype, b.numel, None, 0) for b in moving]
        self._slot_of_absent = {id(absent): slot for slot, absent in enumerate(self._absent)}
        self._scratch, self._inner = scratch_of(b for b in recorded.buffers() if id(b) not in self._slots)
        self.addresses = [_UNBOUND] * len(moving)
        self._setters: dict[str, list[Callable[[int], object]]] = {}
        self._bounds: dict[str, tuple[int, int]] = {}
        self._values: Mapping[str, int] = {}
        self.kernel_count = recorded.kernel_count
        self.kept_bytes, self.least_bytes = self._memory(recorded)
        self._places: list[list[Any]] = [[] for _ in moving]
        self._steps: list[_ReadyBatch | _Copy | _Check | HostCall] = [self._prepared(step) for step in recorded.steps]
        for scratch in self._scratch:  # not before the batches are made, which look at memory
            scratch.give_back()
        only = self._steps[0] if len(self._steps) == 1 and not self._scratch else None
        self.batch = only.batch if isinstance(only, _ReadyBatch) else None  # if that is the only launch
        self.checks_last = isinstance(self._steps[-1], _Check) if self._steps else False
        self.is_bound_only = not any(
            isinstance(step, HostCall) or any(id(part) in self._slot_of_absent for part in step) for step in self._steps
        )

    def _memory(self, recorded: Recording) -> tuple[int, int]:
        """Return the bytes of all owned buffers, and the peak of live bytes of them."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        kept = {id(b): b for b in recorded.buffers() if id(b) not in self._slots}
        written = recorded.written()
        parts = {key: id(b.owner) for key, b in kept.items() if id(b.owner) in kept}  # alive with it
        for time, (touched, _) in enumerate(recorded.uses()):
            for key in (parts.get(id(buffer), id(buffer)) for buffer in touched):
                first.setdefault(key, time if key in written else 0)
                last[key] = time if key in written else len(recorded.steps) << 32
        blocks: dict[int, int] = {}
        for buffer in kept.values():
            whole = buffer.whole
            blocks[id(whole.owner)] = max(whole.nbytes, blocks.get(id(whole.owner), 0))
        changes: dict[int, int] = {}
        for key in kept.keys() - parts:
            buffer = kept[key]
            changes[first[key]] = changes.get(first[key], 0) + buffer.nbytes
            changes[last[key] + 1] = changes.get(last[key] + 1, 0) - buffer.nbytes
        return sum(blocks.values()), max(accumulate(changes[time] for time in sorted(changes)), default=0)

    def _standing(self, buffer: Buffer) -> Buffer:
        """Return the buffer, or its replacement."""
        if (inner := self._inner.get(id(buffer))) is not None:
            return inner[1]
        slot = self._slots.get(id(buffer))
        return buffer if slot is None else self._absent[slot]

    def _prepared(self, step: Step) -> _ReadyBatch | _Copy | _Check | HostCall:
        if isinstance(step, _Copy):
            return _Copy(self._standing(step.target), self._standing(step.source))
        if isinstance(step, _Check):
            return _Check(self._standing(step.buffer), step.message)
        if isinstance(step, HostCall):
            targets, sources = (tuple(map(self._standing, part)) for part in (step.targets, step.sources))
            return HostCall(step.function, targets, sources)
        calls = [c._replace(buffers=tuple(self._standing(b) for b in c.buffers)) for c in step.calls]
        batch = batch_of(get_device(step.device), calls)
        variables: dict[str, list[tuple[int, int]]] = {}
        for entry, call in enumerate(step.calls):
            for slot, buffer in enumerate(call.buffers):
                if (inner := self._inner.get(id(buffer))) is not None:
                    inner[0].bind(batch, entry, slot, inner[1])
                elif id(buffer) in self._slots:
                    self._binders[self._slots[id(buffer)]].append(batch.binder(entry, slot))
                    self._places[self._slots[id(buffer)]].append(batch.place(entry, slot))
            narrow(self._bounds, step.kernels[entry].variables)
            for number, (name, _, _) in enumerate(step.kernels[entry].variables):
                variables.setdefault(name, []).append((entry, number))
        for name, places in variables.items():
            self._setters.setdefault(name, []).append(batch.setter(places))
        return _ReadyBatch(batch, step.kernels)

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
        found = self._places[slot]
        return None if len(found) > _MOST_PLACES or None in found else found

    def launch(self, given: Sequence[Buffer], *, is_timed: bool | None = None) -> None:
        """Launch everything with the current binding. `is_timed`: whether times are wanted, if known."""
        is_timed = wants_report() if is_timed is None else is_timed
        try:
            for scratch in self._scratch:
                scratch.take()
            self._launch(given, is_timed=is_timed)
        finally:
            for scratch in self._scratch:
                scratch.give_back()

    def _launch(self, given: Sequence[Buffer], *, is_timed: bool) -> None:
        for step in self._steps:
            if not isinstance(step, _ReadyBatch):
                self._run_other(step, given, is_timed=is_timed)
            elif is_timed:
                later.profile.report(step.batch.device, step.kernels, step.batch.run(is_timed=True))
            elif (now := recorder.active) is not None:
                now.launch(step.batch, step.kernels, self._values)
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

        def now(buffer: Buffer) -> Buffer:
            slot = self._slot_of_absent.get(id(buffer))
            return buffer if slot is None else given[slot]

        if isinstance(step, _Copy):
            copy_between(now(step.target), now(step.source), is_timed=is_timed)
        elif isinstance(step, HostCall):
            call_host(HostCall(step.function, tuple(map(now, step.targets)), tuple(map(now, step.sources))))
        elif download_scalar(now(step.buffer)):
            raise check_failed(step.message)


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


def copy_between(target: Buffer, source: Buffer, *, is_timed: bool = False) -> None:
    """A buffer into another of the same size; with `is_timed` it is waited for and reported."""
    if not source.numel:
        return
    device, other = get_device(target.device), get_device(source.device)
    start = 0
    try:
        if is_timed or recorder.active is not None:
            other.synchronize()
            device.synchronize()
            start = perf_counter_ns()
        device.copy_from(target, source, other)
        if is_timed or recorder.active is not None:
            device.synchronize()
        if is_timed:
            later.profile.report_copy(target, source, perf_counter_ns() - start)
        if (now := recorder.active) is not None and start:
            now.copied(target, source, start)
    except Exception as error:  # whatever a device's own code raises
        raise failure(device, error, f"a copy of {source.nbytes:,} bytes from {other.name}") from error


def call_host(call: HostCall) -> None:
    """Run the function once all that writes its buffers is done; outputs on devices that the host cannot see are
    copied there."""
    inputs = [read_buffer(get_device(buffer.device), buffer) for buffer in call.sources]
    outputs: list[Any] = []
    for buffer in call.targets:
        device = get_device(buffer.device)
        is_seen = device.limits.is_host_visible
        array = read_buffer(device, buffer) if is_seen else np.empty(buffer.numel, buffer.dtype.stored_as)
        outputs.append(array)
    call.function(outputs, inputs)
    for buffer, array in zip(call.targets, outputs, strict=True):
        device = get_device(buffer.device)
        if buffer.numel and not device.limits.is_host_visible:
            write_buffer(device, buffer, array.data.cast("B"))


def run_on_host(
    function: Callable[[Sequence[Any], Sequence[Any]], None], targets: Sequence[Buffer], sources: Sequence[Buffer]
) -> None:
    """Run a function of the host on buffers now, and again in each replay of a recording that is under way."""
    call = HostCall(function, tuple(targets), tuple(sources))
    call_host(call)
    if (record := current_recording()) is not None:
        record.add_host_call(call)


def download_scalar(buffer: Buffer) -> bool:
    """Return the bool in a buffer of one element."""
    device = get_device(buffer.device)
    if device.limits.is_host_visible and type(device).host_array is Device.host_array:  # no array for one value
        device.synchronize()
        return bool(ctypes.c_uint8.from_address(buffer.address).value)
    return bool(read_buffer(device, buffer)[0])
