"""Lanes: a thread for each device, which runs that device's part of calls in order; so devices work at the same time.

A call over several devices is a list of steps: kernels of one device, or a copy. Each becomes a `LaneTask` on the lane
of the device that works; a copy is one of its target. A task waits for earlier tasks of other lanes only where it reads
what they write, or writes what they read (`waits_of`). Devices that share memory share a lane.

The caller goes on at once. A buffer knows the task that writes it (`Buffer.after`): whoever reads it waits for that
one. Whoever launches on a device outside of lanes waits for its lane (`settle`). A handover to a thread takes about
50 us, so short calls are not worth it (`Timing`). Tests: tests/runtime/test_lanes.py.
"""

from __future__ import annotations

import atexit
import contextvars
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kernmill.ir import at_fork, process_lock

from .device import Device, get_device
from .memory.allocator import finishing
from .memory.buffer import Buffer

__all__ = [
    "InFlight", "LaneStep", "LaneTask", "Timing", "finish", "lane_of", "open_lanes", "settle", "submit", "waits_of",
]  # fmt: skip

_WORTH_NS = 1_000_000  # of a call over several devices: twenty times what the handover to a thread takes
_TRIALS = 2  # calls whose time is taken: the first one prepares more than it repeats
_MOST_FLIGHTS = 2  # generations of the memory of one plan


class LaneStep(NamedTuple):
    """A step of a call: its device, and the buffers it uses; of a copy `reads` is the source, `writes` the target."""

    device: str  # that works: of a copy the target's
    reads: Sequence[Buffer]
    writes: Sequence[Buffer]


class LaneTask:
    """One step in a lane. `keeps` lives until it is done: the memory that it uses."""

    __slots__ = ("_after", "_context", "_done", "_keeps", "_run", "error")

    def __init__(self, run: Callable[[], object], after: Sequence[LaneTask], keeps: object) -> None:
        self._run: Callable[[], object] | None = run
        self._after: Sequence[LaneTask] = after
        self._keeps: object = keeps
        self._context = contextvars.copy_context()  # settings of the caller's thread
        self._done = threading.Event()
        self.error: BaseException | None = None

    def wait(self) -> None:
        """Return when it is done. Raises the error that ended it, or one of those that it waited for."""
        self._done.wait()
        if self.error is not None:
            raise self.error

    def finish(self) -> None:
        """Run it, once the others are done. For the thread of the lane."""
        try:
            for task in self._after:
                task.wait()
            assert self._run is not None
            self._context.run(self._run)
        except BaseException as error:  # whoever waits for the task gets it
            self.error = error
        self._run = self._keeps = None
        self._after = ()
        self._done.set()


class _Lane:
    """A thread and the tasks before it."""

    def __init__(self, name: str) -> None:
        self.tasks: queue.SimpleQueue[LaneTask] = queue.SimpleQueue()
        self.last: LaneTask | None = None
        threading.Thread(target=self.work, name=f"kernmill {name}", daemon=True).start()

    def work(self) -> None:
        _here.is_lane = True
        while True:
            self.tasks.get().finish()


class _Here(threading.local):
    is_lane = False


_here = _Here()
open_lanes: dict[str, _Lane] = {}
_lock = process_lock()


def lane_of(device: str) -> str:
    """The name of a device's lane: that of the memory it shares with others, or its own."""
    return get_device(device).limits.group or device


def submit(device: str, run: Callable[[], object], after: Sequence[LaneTask], keeps: object) -> LaneTask:
    """Have the lane of a device call this, and wait for that, when all it has to do before and these tasks are done."""
    opened = get_device(device)  # not one that is opened meanwhile

    def run_and_finish() -> None:
        run()
        finish(opened)

    task, name = LaneTask(run_and_finish, after, keeps), lane_of(device)
    with _lock:
        lane = open_lanes.get(name) or open_lanes.setdefault(name, _Lane(name))
        lane.last = task
        lane.tasks.put(task)
    return task


def settle(devices: Iterable[str] | None = None) -> None:
    """Return when the lanes of these devices have nothing to do; None: all lanes. Errors are for those who read."""
    if not open_lanes or _here.is_lane:  # a lane does not wait for itself
        return
    for name in list(open_lanes) if devices is None else {lane_of(device) for device in devices}:
        lane = open_lanes.get(name)
        if lane is not None and lane.last is not None:
            lane.last._done.wait()


at_fork(before=settle, after_in_child=open_lanes.clear)
atexit.register(settle)
finishing.append(settle)


def finish(device: Device) -> None:
    """Wait for what a device was given so far, by an event where it returns before its work is done."""
    if device.limits.is_async:
        event = device.event()
        event.record()
        event.wait()


class Timing:
    """The times of the calls of one plan that ran in their caller's thread."""

    def __init__(self) -> None:
        self._times: list[int] = []

    @property
    def is_long(self) -> bool:
        """True if its calls are worth a handover."""
        return len(self._times) == _TRIALS and min(self._times) >= _WORTH_NS

    def run(self, call: Callable[[], object], devices: Iterable[str]) -> None:
        """Run a call here, and take its time until these devices are done."""
        start = time.perf_counter_ns()
        call()
        for name in devices:
            finish(get_device(name))
        self._times = [*self._times[1 - _TRIALS :], time.perf_counter_ns() - start]


class InFlight:
    """The calls of one plan that are under way: at most two, in different memory."""

    def __init__(self) -> None:
        self.timing = Timing()
        self._waits: list[list[int]] = []
        self._calls: list[list[LaneTask]] = []

    def begin(self, steps: Sequence[tuple[LaneStep, Callable[[], object]]], keeps: object) -> None:
        """Give each step to its lane. Raises the error of the call before the last."""
        while len(self._calls) >= _MOST_FLIGHTS:
            for task in self._calls.pop(0):
                task.wait()
        self._waits = self._waits or waits_of([step for step, _ in steps])
        tasks: list[LaneTask] = []
        for n, (step, run) in enumerate(steps):
            after = [tasks[m] for m in self._waits[n]]
            after += [task for b in step.reads if (task := b.whole.after) is not None]  # results of other calls
            tasks.append(submit(step.device, run, after, keeps))
            for buffer in step.writes:
                buffer.whole.after = tasks[n]
        self._calls.append(tasks)


# --- what a step waits for -------------------------------------------------------------------------------------------
def waits_of(steps: Sequence[LaneStep]) -> list[list[int]]:
    """For each step the earlier ones of other lanes that it has to wait for.

    Only copies reach beyond a lane: into it they read what kernels there wrote, and kernels there may then write over
    what they read.
    """
    lanes = [lane_of(step.device) for step in steps]
    reaches = [{lane_of(b.device) for b in step.reads} - {lanes[n]} for n, step in enumerate(steps)]
    found: list[list[int]] = []
    for n, step in enumerate(steps):
        waits = [m for m in range(n) if lanes[m] in reaches[n] and _meet(steps[m].writes, step.reads)][-1:]
        waits += [m for m in range(n) if lanes[n] in reaches[m] and _meet(steps[m].reads, step.writes)]
        found.append(waits)
    return found


def _meet(some: Sequence[Buffer], others: Sequence[Buffer]) -> bool:
    """True if a buffer of one list has bytes of one of the other."""
    return any(a is b or _overlap(a, b) for a in some for b in others if a.device == b.device)


def _overlap(a: Buffer, b: Buffer) -> bool:
    one, other = a.whole, b.whole
    if one is not other:
        return False
    return a.address < b.address + b.nbytes and b.address < a.address + a.nbytes
