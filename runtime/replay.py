"""A captured schedule as one call: record what realize launches, then launch it again on other buffers.

A recording is a list of batches (kernels of one device), copies and checks over concrete buffers. A replay knows which of those
buffers are inputs and outputs; everything else (weights, intermediates) stays where it is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from kernmill.compiler import Kernel
from kernmill.ir import IndexRangeError, KernmillError

from .buffer import Buffer
from .device import Batch, Call, get_device
from .profile import report, wants_report

__all__ = ["Recording", "Replay", "current_recording", "recording"]


@dataclass(slots=True)
class _Kernels:
    device: str
    kernels: list[Kernel]
    calls: list[Call]


@dataclass(slots=True)
class _Ready:
    """Kernels in the device's own form."""

    batch: Batch
    kernels: list[Kernel]


@dataclass(slots=True)
class _Copy:
    target: Buffer
    source: Buffer


@dataclass(slots=True)
class _Check:
    buffer: Buffer
    message: str


Step: TypeAlias = "_Kernels | _Copy | _Check"


@dataclass(slots=True)
class Recording:
    """What was launched, in order."""

    steps: list[Step] = field(default_factory=list[Step])

    def add_kernels(self, device: str, batch: Sequence[tuple[Kernel, Call]]) -> None:
        """A batch was launched; batches of one device that follow each other are one."""
        last = self.steps[-1] if self.steps else None
        if not isinstance(last, _Kernels) or last.device != device:
            last = _Kernels(device, [], [])
            self.steps.append(last)
        last.kernels += [kernel for kernel, _ in batch]
        last.calls += [call for _, call in batch]

    def add_copy(self, target: Buffer, source: Buffer) -> None:
        """A buffer was copied to another device."""
        self.steps.append(_Copy(target, source))

    def add_check(self, buffer: Buffer, message: str) -> None:
        """A bool was looked at after the run."""
        self.steps.append(_Check(buffer, message))

    def written(self) -> set[int]:
        """Identities of the buffers that some step writes."""
        found = {id(step.target) for step in self.steps if isinstance(step, _Copy)}
        for step in self.steps:
            if isinstance(step, _Kernels):
                for kernel, call in zip(step.kernels, step.calls, strict=True):
                    found |= {id(call.buffers[kernel.buffers.index(number)]) for number in kernel.outputs}
        return found

    @property
    def kernel_count(self) -> int:
        """Kernels in the recording."""
        return sum(len(step.calls) for step in self.steps if isinstance(step, _Kernels))


_local = threading.local()


def current_recording() -> Recording | None:
    """The recording of this thread, if one is under way."""
    found: Recording | None = getattr(_local, "recording", None)
    return found


@contextmanager
def recording() -> Iterator[Recording]:
    """Record everything that this thread launches inside the block.

    Raises:
        KernmillError: another recording of this thread is under way.
    """
    if current_recording() is not None:
        raise KernmillError("jit: a captured function calls another captured function. Call the inner one undecorated.")
    _local.recording = Recording()
    try:
        yield _local.recording
    finally:
        _local.recording = None


class Replay:
    """A recording that runs again: `inputs` and `outputs` are the buffers that may be others each time."""

    def __init__(self, recorded: Recording, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        self._places: dict[int, list[tuple[Batch, int, int]]] = {id(b): [] for b in (*inputs, *outputs)}
        self._inputs = list(inputs)
        self._outputs = list(outputs)
        self._current: dict[int, int] = {}
        self._kept = recorded  # keeps weights and intermediates alive
        self._steps: list[_Ready | _Copy | _Check] = [self._prepared(step) for step in recorded.steps]

    def _prepared(self, step: Step) -> _Ready | _Copy | _Check:
        if not isinstance(step, _Kernels):
            moved = [b for b in ((step.target, step.source) if isinstance(step, _Copy) else (step.buffer,)) if id(b) in self._places]
            if moved:
                raise KernmillError("jit: an input or result is copied between devices or checked; realize it outside the function.")
            return step
        batch = get_device(step.device).prepare(step.calls)
        for entry, call in enumerate(step.calls):
            for slot, buffer in enumerate(call.buffers):
                if id(buffer) in self._places:
                    self._places[id(buffer)].append((batch, entry, slot))
        return _Ready(batch, step.kernels)

    def run(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        """Launch everything with these buffers in place of the recorded ones.

        Raises:
            IndexRangeError: a recorded check failed.
        """
        for recorded, given in zip((*self._inputs, *self._outputs), (*inputs, *outputs), strict=True):
            key = id(recorded)
            if self._current.get(key) != given.address:
                for batch, entry, slot in self._places[key]:
                    batch.rebind(entry, slot, given)
                self._current[key] = given.address
        for step in self._steps:
            if isinstance(step, _Ready):
                if wants_report():
                    report(step.batch.device, step.kernels, step.batch.run(is_timed=True))
                else:
                    step.batch.run()
            elif isinstance(step, _Copy):
                copy_between(step.target, step.source)
            elif download_scalar(step.buffer):
                raise IndexRangeError(step.message)


def copy_between(target: Buffer, source: Buffer) -> None:
    """A buffer into another of the same size, through the host where the devices differ."""
    get_device(source.device).synchronize()
    if source.numel:
        import numpy as np

        staged = np.empty(source.nbytes, np.uint8)
        get_device(source.device).copy_out(staged.data, source)
        get_device(target.device).copy_in(target, staged.data)


def download_scalar(buffer: Buffer) -> bool:
    """Whether the bool in a buffer of one element is true."""
    import numpy as np

    out = np.zeros(buffer.nbytes, np.uint8)
    get_device(buffer.device).copy_out(out.data, buffer)
    return bool(out.any())
