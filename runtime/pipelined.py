"""class PipelinedReplay: a replay over several devices, in their lanes, with two generations of the memory between.

A call begins while the one before it is in later stages: it works on the other generation, and waits only until the
call before the last is done. Short calls, and those that change the state of their caller in place or check values,
run or end before they return. Tests: tests/runtime/test_lanes.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from kernmill.ir import OutOfMemoryError

from . import recorder
from .execute import allocate_buffer
from .lanes import LaneTask, Timing, lane_of, submit, waits_of
from .memory.buffer import Arena, Buffer
from .replay import Recording, Replay
from .scratch import is_shared
from .watch import wants_report

__all__ = ["PipelinedReplay", "replay_of"]


def replay_of(recorded: Recording, moving: Sequence[Buffer], *, changes_state: bool) -> Replay:
    """A replay of one lane, or of several. `changes_state`: it writes to memory that existed before."""
    lanes = {lane_of(step.device) for step in recorded.steps_in_lanes(lambda buffer: buffer)}
    if len(lanes) <= 1 or recorded.has_host_calls:  # a function of the host reads what every device wrote before
        return Replay(recorded, moving)
    return PipelinedReplay(recorded, moving, changes_state=changes_state)


class PipelinedReplay(Replay):
    """A recording over several lanes; `changes_state`: it writes to memory that existed before."""

    def __init__(self, recorded: Recording, moving: Sequence[Buffer], *, changes_state: bool) -> None:
        super().__init__(recorded, moving)
        self.is_bound_only = False  # each call has to take turns
        self._template: Recording | None = _template(
            recorded, {id(old): new for old, new in zip(moving, self.absent, strict=True)}
        )
        self._ends_here = changes_state or self.has_checks
        self._turns = [_Turn(self, recorded)]
        self._timing = Timing()

    def run(
        self, given: Sequence[Buffer], values: Mapping[str, int] | None = None, slots: Iterable[int] | None = None
    ) -> None:
        """As `Replay.run`; of a call that takes long, only its begin."""
        if wants_report() or recorder.active is not None or not self._timing.is_long:
            for turn in self._turns:
                turn.wait()
            self._timing.run(partial(super().run, given, values), self._turns[0].devices)
            return
        if self._template is not None:
            with suppress(OutOfMemoryError):  # with one generation a call begins when the one before it is done
                form = _renewed(self._template)
                self._turns.append(_Turn(Replay(form, self.absent), form))
            self._template = None
        turn = self._turns.pop(0)
        self._turns.append(turn)
        turn.wait()
        turn.begin(given, values or {})
        if self._ends_here:
            turn.wait()
            self.check(given)


class _Turn:
    """A generation: a replay in separate memory, and the tasks of its last call."""

    def __init__(self, replay: Replay, recorded: Recording) -> None:
        self.replay = replay
        slots = {id(absent): slot for slot, absent in enumerate(replay.absent)}
        steps = recorded.steps_in_lanes(replay.standing)
        self._waits = waits_of(steps)
        self._devices = [step.device for step in steps]
        self.devices = {*self._devices}
        self._written = [[slots[id(b)] for b in step.writes if id(b) in slots] for step in steps]
        self._read = [[slots[id(b)] for b in step.reads if id(b) in slots] for step in steps]
        self._tasks: list[LaneTask] = []

    def wait(self) -> None:
        """Return when its last call is done."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.wait()

    def begin(self, given: Sequence[Buffer], values: Mapping[str, int]) -> None:
        """Bind everything, and give each step to its lane."""
        replay = self.replay
        replay.set_variables(values)
        for slot, buffer in enumerate(given):
            if buffer.address != replay.addresses[slot]:
                replay.bind(slot, buffer)
        keeps = [*given, *replay.take()]
        tasks: list[LaneTask] = []
        for n, (device, run) in enumerate(zip(self._devices, replay.actions(given), strict=True)):
            results = [
                task for slot in self._read[n] if (task := given[slot].whole.after) is not None
            ]  # of other calls
            after = [*results, *[tasks[m] for m in self._waits[n]]]
            tasks.append(submit(device, run, after, keeps))
            for slot in self._written[n]:
                given[slot].whole.after = tasks[n]
        replay.give_back()
        self._tasks = tasks


def _template(recorded: Recording, other: dict[int, Buffer]) -> Recording:
    """The launches, without the memory of their caller and of what is taken for each run."""
    arenas: dict[int, Arena] = {}
    for buffer in recorded.buffers():
        whole = buffer.whole
        if id(buffer) not in other and isinstance(whole, Arena) and is_shared(whole):
            arena = arenas.setdefault(id(whole), Arena(whole.device, whole.dtype, whole.numel, None, whole.address))
            other[id(buffer)] = Buffer(buffer.device, buffer.dtype, buffer.numel, arena, buffer.address)
    return recorded.with_buffers(other)


def _renewed(form: Recording) -> Recording:
    """The same launches with other memory for what they write and keep between calls."""
    written = form.written() - form.kept()
    wholes = {id(b.whole): b.whole for b in form.buffers() if id(b) in written and b.whole.owner is not None}
    new = {key: allocate_buffer(b.device, b.dtype, b.numel, type(b)) for key, b in wholes.items()}
    other: dict[int, Buffer] = {}
    for buffer in form.buffers():
        if (whole := new.get(id(buffer.whole))) is not None:
            address = whole.address + buffer.address - buffer.whole.address
            is_whole = buffer is buffer.whole
            other[id(buffer)] = whole if is_whole else Buffer(buffer.device, buffer.dtype, buffer.numel, whole, address)
    return form.with_buffers(other)
