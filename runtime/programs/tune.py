"""Search: try schedules of a kernel on its device, keep the fastest, store it (BEAM=n, `kernmill tune`).

Candidates are built and timed in another process (tune_worker.py): if one crashes or exceeds its time, only that
process is lost, and restarted. Each is timed alternately with the best so far, so that noise affects both. Its results
are compared with the heuristic's on the same data; a candidate with different results is reported and never chosen. The
search keeps the `width` fastest schedules and tries their neighbours, most often the fastest one's, until time is up or
none is left. Of a few neighbours it measures the one with the least estimated time
(compiler/kernel/planned_work.py). TRY=n measures only the cheapest of them, in one request.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import queue
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kernmill.compiler import (
    Action,
    merge_loops,
    neighbours,
    optimized,
    parse_schedule,
    planned_ns,
    show_schedule,
)
from kernmill.ir import SETTINGS, CompileError, InternalError, Kernel, KernmillError, UOp, setting

from ..device import Device
from .candidates import Candidate, store_candidates
from .compiling import heuristic_schedule
from .kernel_text import kernel_to_text
from .schedules import store_schedule, stored_schedule

__all__ = ["CandidateLost", "Tuned", "Worker", "search", "try_candidates", "tune_kernel"]

_CANDIDATE_S: Final = 10.0  # building and timing of one
_START_S: Final = 120.0  # imports, the data, the reference's first run
_FARTHER: Final = (6, 3, 1)  # how often 0, 1 or 2 more steps are taken before anything is measured
_RANKED: Final = 4  # neighbours of a schedule that are estimated for each that is measured
_POOL: Final = 16  # the same with TRY=n, of the heuristic's schedule alone
_BETTER: Final = 0.98  # a ratio of times above this may be noise
_WORKER: Final = "from kernmill.runtime.programs.tune_worker import main; main()"
# settings of the worker
_HERE: Final = {"BEAM": "0", "TRY": "0", "OVERRIDE": "", "DEBUG": "0", "DUMP": "", "CHECK": "0"}

_log = logging.getLogger("kernmill")


@dataclass(slots=True)
class Tuned:
    """The result of a search. Units: nanoseconds. `heuristic_ns` is the heuristic's time in the same search."""

    kernel: Kernel
    schedule: list[Action]
    time_ns: float
    heuristic_ns: float
    noise: float = 0.0  # of a ratio of two times of the same program
    tried: int = 0
    refused: int = 0  # by the compiler
    lost: int = 0  # crashed or too slow to wait for
    wrong: list[InternalError] = field(default_factory=list[InternalError])
    measured: list[Candidate] = field(default_factory=list[Candidate])  # every one that was timed

    @property
    def speedup(self) -> float:
        """How much faster than the heuristic's choice."""
        return self.heuristic_ns / self.time_ns if self.time_ns else 1.0


class CandidateLost(KernmillError):
    """The worker died or did not answer in time."""


class Worker:
    """The other process: started at the first request, ended when it does not answer or its input ends."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self.knows: Kernel | None = None  # the kernel that it has loaded
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()

    def ask(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """The answer to one request.

        Raises:
            CandidateLost: no answer within the time; the process is gone.
        """
        process = self._process or self._start()
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = self._answers.get(timeout=limit_s)
        except queue.Empty:
            self.close()
            raise CandidateLost(f"not done in {limit_s:g} s") from None
        except OSError:  # the other end of the pipe is gone
            line = ""
        except BaseException:  # Ctrl-C: an answer that comes later belongs to no question
            self.close()
            raise
        if not line:
            self.close()
            raise CandidateLost(f"the process ended ({process.returncode})")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _start(self) -> subprocess.Popen[str]:
        changed = {name: str(setting(name)) for name, row in SETTINGS.items() if setting(name) != row.default}
        path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
        self._process = process = subprocess.Popen(
            [sys.executable, "-c", _WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, encoding="utf-8", env={**os.environ, **changed, **_HERE, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for us
        )  # fmt: skip
        self._answers = answers = queue.SimpleQueue[str]()

        def read() -> None:
            assert process.stdout is not None
            with contextlib.suppress(ValueError):  # closed meanwhile
                for line in process.stdout:
                    answers.put(line)
            answers.put("")

        try:
            threading.Thread(target=read, daemon=True).start()
        except RuntimeError as error:
            self.close()
            raise CandidateLost(f"no thread reads its answers ({error})") from None
        return process

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                with contextlib.suppress(OSError):
                    assert pipe is not None
                    pipe.close()
            self._process = self.knows = None


_shared: Final = Worker()  # for BEAM=n; it ends with us, when its input does


def tune_kernel(device: Device, kernel: Kernel, *, width: int = 4, seconds: float = 10.0,
                progress: Callable[[Tuned], None] | None = None, worker: Worker | None = None) -> Tuned:  # fmt: skip
    """Search for a schedule for at most about `seconds`, and store the best one, also after Ctrl-C.

    A given `worker` serves several searches and is closed by the caller.

    Raises:
        CandidateLost, CompileError: the heuristic's own choice cannot be run in another process.
    """
    run = _Search(device, kernel, width, time.monotonic() + seconds)
    run.worker = worker or run.worker
    try:
        run.begin()
        for _ in run.steps():
            if progress is not None:
                progress(run.found)
        run.confirm()
    finally:
        if worker is None:
            run.worker.close()
        run.keep()
    return run.found


def search(device: Device, kernel: Kernel, width: int, seconds: float) -> str:
    """BEAM=n while a kernel is built: return the result of `tune_kernel`; the heuristic's schedule if nothing can be
    tried."""
    try:
        return show_schedule(tune_kernel(device, kernel, width=width, seconds=seconds, worker=_shared).schedule)
    except (CandidateLost, CompileError) as error:
        _log.warning("BEAM: %s is not searched: %s", kernel.name, error)
        return show_schedule(heuristic_schedule(device, kernel))


def try_candidates(device: Device, kernel: Kernel, count: int, worker: Worker = _shared) -> str:
    """TRY=n while a kernel is built: measure the heuristic's schedule and the n - 1 neighbours with the least estimated
    time; return the fastest, which is stored. It is the heuristic's if nothing can be measured."""
    run = _Search(device, kernel, count, time.monotonic() + _START_S)
    run.worker = worker
    try:
        run.among(run.cheapest(count - 1))
    except (CandidateLost, CompileError) as error:
        _log.warning("TRY: %s is not measured: %s", kernel.name, error)
    run.keep()
    return show_schedule(run.found.schedule)


class _Estimated(NamedTuple):
    """A candidate with its kernel and its estimated time."""

    schedule: list[Action]
    done: UOp
    cost_ns: float


@dataclass(slots=True)
class _Member:
    """A schedule in the beam, with its neighbours that were not tried yet."""

    schedule: list[Action]
    time_ns: float
    left: Iterator[tuple[list[Action], UOp]] | None
    ranked: list[_Estimated] = field(default_factory=list["_Estimated"])  # of these the cheapest is measured next


class _Search:
    """One search."""

    def __init__(self, device: Device, kernel: Kernel, width: int, deadline: float) -> None:
        self.device, self.kernel, self.width, self.deadline = device, kernel, max(1, width), deadline
        self.ast = merge_loops(kernel.ast)
        self.random = random.Random(kernel.ast.key)
        self.worker = Worker()
        self.heuristic = heuristic_schedule(device, kernel)
        self.found = Tuned(kernel, self.heuristic, 0.0, 0.0)
        self.members: list[_Member] = []
        self.seen: set[UOp] = set()

    def begin(self) -> None:
        """Time the heuristic's choice, and the stored schedule."""
        self.found.time_ns = self.found.heuristic_ns = self.meet(_START_S)
        self.consider(self.heuristic, optimized(self.ast, self.heuristic), 1.0)
        self.found.tried = 1
        before = stored_schedule(self.device, self.kernel)
        for schedule in [*([] if before is None else [parse_schedule(before)]), []]:
            done = optimized(self.ast, schedule)
            if done is not None and done not in self.seen:
                self.attempt(schedule, done)

    def steps(self) -> Iterator[None]:
        """Try one neighbour after the other."""
        while time.monotonic() < self.deadline:
            open_members = [m for m in self.members if m.left is not None or m.ranked]
            if not open_members:
                return
            (member,) = self.random.choices(open_members, [1 / (1 + rank) for rank in range(len(open_members))])
            while member.left is not None and len(member.ranked) < _RANKED:
                self.rank(member)
            if member.ranked:
                self.attempt(*min(member.ranked, key=lambda step: step.cost_ns)[:2])
                member.ranked = [step for step in member.ranked if step.done not in self.seen]
                yield

    def rank(self, member: _Member) -> None:
        """Take the next neighbour of a member, or one a few steps farther, and estimate its time."""
        step = next((s for s in member.left or () if s[1] not in self.seen), None)
        if step is None:
            member.left = None
            return
        for _ in range(self.random.choices(range(len(_FARTHER)), _FARTHER)[0]):
            step = next(neighbours(self.ast, step[0], self.device.target, self.random), step)
        if step[1] not in self.seen and all(step[1] is not other.done for other in member.ranked):
            member.ranked.append(_Estimated(*step, self.estimated(step[1])))

    def estimated(self, done: UOp) -> float:
        """Return the estimated time of a candidate."""
        return planned_ns(done, self.device.target)

    def cheapest(self, count: int) -> list[list[Action]]:
        """Return the neighbours of the heuristic's schedule with the least estimated time."""
        steps = neighbours(self.ast, self.heuristic, self.device.target, self.random, 2 * _POOL)
        pool = [_Estimated(*step, self.estimated(step[1])) for step in itertools.islice(steps, _POOL)]
        return [one.schedule for one in sorted(pool, key=lambda one: one.cost_ns)[:count]]

    def among(self, schedules: list[list[Action]]) -> None:
        """Time these and the heuristic's choice in turn, in one request; the fastest is the one that is found."""
        found, first = self.found, show_schedule(self.heuristic)
        texts = [first, *map(show_schedule, schedules)]
        self.worker.knows = None
        request = {"kernel": kernel_to_text(self.kernel), "device": self.device.name, "reference": first}
        answer = self.worker.ask({**request, "among": texts}, _START_S)
        if "refused" in answer:
            raise CompileError(f"tune: {self.kernel.name}: {answer['refused']}")
        times: list[float | None] = answer["cpu_ns"]
        for schedule, cpu_ns in zip([self.heuristic, *schedules], times, strict=True):
            if cpu_ns is not None:
                found.tried += 1
                self.note(schedule, {"cpu_ns": cpu_ns})
        found.wrong = [self.report(schedules[int(number) - 1], what) for number, what in answer["wrong"].items()]
        best = int(answer["best"])
        found.schedule = [self.heuristic, *schedules][best]
        found.heuristic_ns, found.time_ns = times[0] or 0.0, times[best] or 0.0

    def keep(self) -> None:
        """Store the schedule that was found, and the times of all."""
        found = self.found
        if found.time_ns:
            facts = {"time_ns": round(found.time_ns), "heuristic_ns": round(found.heuristic_ns), "tried": found.tried}
            store_schedule(self.device, self.kernel, show_schedule(found.schedule), facts)
            store_candidates(self.device, self.kernel, found.measured)

    def meet(self, limit_s: float) -> float:
        """Tell the worker the kernel and the schedule to beat; the time of that. The reference is the heuristic's."""
        given = {"kernel": kernel_to_text(self.kernel), "device": self.device.name}
        given |= {"reference": show_schedule(self.heuristic), "schedule": show_schedule(self.found.schedule)}
        try:
            answer = self.worker.ask(given, limit_s)
        except CandidateLost:  # ended by somebody else, perhaps: a new one may live
            answer = self.worker.ask(given, limit_s)
        if "refused" in answer:
            raise CompileError(f"tune: {self.kernel.name}: {answer['refused']}")
        self.worker.knows = self.kernel
        self.found.noise = max(self.found.noise, float(answer.get("noise", 0.0)))
        self.note(self.found.schedule, answer)
        return float(answer["time_ns"])

    def note(self, schedule: list[Action], answer: Mapping[str, Any]) -> None:
        """Record the time of a candidate."""
        if "cpu_ns" in answer:
            self.found.measured.append(Candidate("; ".join(map(str, schedule)), float(answer["cpu_ns"])))

    def attempt(self, schedule: list[Action], done: UOp) -> None:
        """Build and time one candidate."""
        self.seen.add(done)
        try:
            if self.worker.knows is not self.kernel:
                self.meet(_START_S)
            answer = self.worker.ask({"try": show_schedule(schedule)}, _CANDIDATE_S)
        except CandidateLost:
            self.found.lost += 1
            return
        if "wrong" in answer:
            self.found.wrong.append(self.report(schedule, answer["wrong"]))
        elif "refused" in answer:
            self.found.refused += 1
        else:
            self.found.tried += 1
            self.note(schedule, answer)
            self.consider(schedule, done, float(answer["ratio"]))

    def confirm(self) -> None:
        """Time the best alternately with the heuristic's again: it must win by more than noise, three rounds of
        four."""
        found = self.found
        if found.schedule == self.heuristic:
            return
        with contextlib.suppress(CandidateLost, CompileError, KeyError):  # lost, refused, wrong
            self.meet(_START_S)
            answer = self.worker.ask({"try": show_schedule(self.heuristic), "to_the_end": ""}, _START_S)
            found.heuristic_ns = float(answer["time_ns"])
            found.time_ns = found.heuristic_ns / float(answer["ratio"])
            if float(answer["least"]) * min(_BETTER, 1 - found.noise) >= 1:
                return
        found.schedule, found.time_ns = self.heuristic, found.heuristic_ns

    def consider(self, schedule: list[Action], done: UOp | None, ratio: float) -> None:
        """Keep a schedule if it is one of the fastest; `ratio` is its time by the best one's."""
        time_ns = self.found.time_ns * ratio
        if done is not None:
            self.seen.add(done)
        left = neighbours(self.ast, schedule, self.device.target, self.random)
        self.members = sorted([*self.members, _Member(schedule, time_ns, left)], key=lambda m: m.time_ns)[: self.width]
        if ratio < _BETTER:
            with contextlib.suppress(CandidateLost):
                self.worker.ask({"keep": ""}, _CANDIDATE_S)
            self.found.schedule, self.found.time_ns = schedule, time_ns

    def report(self, schedule: list[Action], what: str) -> InternalError:
        """Report a schedule that changes the results: a bug of the compiler."""
        text = "; ".join(str(action) for action in schedule)
        error = InternalError(
            f"tune: {self.kernel.name} ({self.kernel.ast.key.hex()[:8]}) on {self.device.name} gives different "
            f"results with the schedule {text!r}: {what}. It is not used. Please report it with the program that "
            "was tuned."
        )
        _log.error("%s", error)
        return error
