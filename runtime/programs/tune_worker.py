"""The process in which tune.py has candidates built and timed: one request a line, one answer a line, both JSON.

Whatever a candidate does - never finish, crash, write where it should not - happens here and not in the user's process.
Requests: {"kernel", "device", "reference", "schedule"} first: two schedules, with the correct results and the time to
beat. The answer has the noise: half the distance between the quartiles of ratios of its own times. {"try"}: build a
candidate, compare its results with the correct ones, time it alternately with the one to beat.
{"keep"}: the last candidate is now the one to beat. {"kernel", "device", "reference", "among"}: time a few schedules in
turn, the first of which is the reference; the answer has the CPU time of each, and which is the fastest.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from kernmill.compiler import parse_schedule
from kernmill.ir import Kernel, KernmillError, setting

from ..device import Batch, Call, get_device, write_buffer
from ..execute import allocate_buffer
from ..memory.buffer import Buffer
from .check import agree
from .compiling import compile_with
from .kernel_inputs import params_of, random_inputs
from .kernel_text import kernel_from_text

__all__ = ["Bench", "main"]

_SAMPLE_NS: Final = 500_000  # a sample repeats the kernel for so long
_ROUNDS: Final = 9
_SURE_ROUNDS: Final = 31  # rounds of a complete timing, as long as there is time
_FIRST_ROUNDS: Final = 3  # after which a candidate that is clearly slower is left
_ENOUGH_S: Final = 0.3  # and no more rounds are begun
_CLEARLY: Final = 1.1
_LOOK_NS: Final = 100_000  # a sample of a first look,
_LOOKS: Final = 7  # samples of each
_FASTER: Final = 0.98  # of a time, below which it is not noise
_HOPELESS: Final = 2  # slower by this in one launch, after one that was not timed


class Bench:
    """A kernel with its own data; a program to beat, and the results that every other must have."""

    def __init__(self, kernel: Kernel, reference: str, schedule: str) -> None:
        self.kernel = kernel
        self.outputs = list(dict.fromkeys(int(store.src[0].src[0].arg[0]) for store in kernel.ast.src))
        self.device = get_device(kernel.device)
        self.data = random_inputs(kernel)
        self.buffers = {int(p.arg[0]): allocate_buffer(kernel.device, p.dtype, p.arg[1]) for p in params_of(kernel)}
        self.in_place = [slot for slot in self.outputs if slot in self.data]
        self.cpu_ns = float("inf")  # of one launch of the candidate, at least, by this thread's clock
        self.variables = tuple(greatest for _, _, greatest in kernel.variables)
        for slot in self.data:
            self.fill(slot, self.data[slot])
        self.reference: dict[int, Any] = {}
        self.best = self.candidate = self.call(reference)
        self.run_checked(self.best)
        if schedule != reference:
            self.best = self.candidate = self.call(schedule)

    def fill(self, slot: int, values: Any) -> None:
        """Bytes into a buffer."""
        write_buffer(self.device, self.buffers[slot], values.view("uint8").data)

    def results(self, slot: int) -> Any:
        """A copy of a buffer's values."""
        return self.device.host_array(self.buffers[slot]).copy()

    def call(self, schedule: str) -> Call:
        """Return a launch of the kernel with this schedule."""
        program = compile_with(self.device, self.kernel, parse_schedule(schedule))
        buffers: tuple[Buffer, ...] = tuple(self.buffers.values())
        return Call(program, buffers, self.variables, program.threads)

    def run_checked(self, call: Call) -> None:
        """One launch on fresh data; its results are compared with the reference, or become it.

        Raises:
            KernmillError: they differ.
        """
        for slot in self.outputs:
            nonsense = self.results(slot).view("uint8")
            nonsense.fill(0x5A)  # elements that are not written are detected
            self.fill(slot, self.data.get(slot, nonsense))
        self.device.run([call])
        for slot in self.outputs:
            got = self.results(slot)
            wanted = self.reference.setdefault(slot, got)
            if wanted is not got and not agree(got, wanted, self.buffers[slot].dtype.name):
                differ = (got != wanted).nonzero()[0][:5]
                raise KernmillError(f"at {differ.tolist()} it has {got[differ]} where {wanted[differ]} is correct")

    def attempt(self, schedule: str, *, to_the_end: bool = False) -> dict[str, Any]:
        """Build a candidate, time it alternately with the best; return the ratio of their times (below 1: faster).

        One that is clearly slower is not timed `to_the_end`, and its results are not compared.
        """
        try:
            self.candidate = self.call(schedule)
        except KernmillError as error:
            return {"refused": str(error)}
        self.timed(self.device.prepare([self.candidate]))  # not to be compared: its code and its data come in
        self.cpu_ns = float("inf")
        ratios, times = self.compare(self.candidate, self.best, to_the_end=to_the_end)
        ratio = statistics.median(ratios)
        if ratio < _CLEARLY:  # to compare large results takes longer than to time them
            try:
                self.run_checked(self.candidate)
            except KernmillError as error:
                return {"wrong": str(error)}
        least, time_ns = sorted(ratios)[len(ratios) // 4], statistics.median(times)
        return {"ratio": ratio, "least": least, "time_ns": time_ns, "cpu_ns": self.cpu_ns}

    def compare(self, one: Call, other: Call, *, to_the_end: bool = False) -> tuple[list[float], list[float]]:
        """Return ratios of `one` to `other`, timed alternately, and the times of `one`."""
        single, other_single = (self.timed(self.device.prepare([call])) for call in (one, other))
        if single > _HOPELESS * other_single and single > _SAMPLE_NS and not to_the_end:
            return [single / other_single], [single]
        sample_one, sample_other = self.sampler(one, single), self.sampler(other, other_single)
        ratios, times = list[float](), list[float]()
        begun = time.perf_counter()
        least, most = (_ROUNDS, _SURE_ROUNDS) if to_the_end else (_FIRST_ROUNDS, _ROUNDS)
        for number in range(most):
            pair = (sample_one(), sample_other())
            times.append(pair[0])
            ratios.append(pair[0] / pair[1])
            is_slow = statistics.median(ratios) > _CLEARLY and not to_the_end
            if number + 1 >= least and (is_slow or time.perf_counter() - begun > _ENOUGH_S):
                break
        return ratios, times

    def sampler(self, call: Call, single: int) -> Callable[[], float]:
        """A function that times some launches: nanoseconds of one, which takes about `single`."""
        count = 1 if self.in_place else int(min(1000, max(1, _SAMPLE_NS // max(1, single))))
        batch = self.device.prepare([call] * count)
        return lambda: self.timed(batch) / count

    def busy_ns(self, call: Call, count: int) -> float:
        """Return the nanoseconds of one of `count` launches: of the thread's CPU, or of the clock if others help."""
        batch = self.device.prepare([call] * count)
        self.candidate, self.cpu_ns = call, float("inf")
        took = self.timed(batch) / count
        return max(1.0, self.cpu_ns if setting("THREADS") == 1 else took)

    def timed(self, batch: Batch) -> int:
        """Return the nanoseconds of a batch; overwritten inputs are restored before."""
        for slot in self.in_place:
            self.fill(slot, self.data[slot])
        begun, busy = time.perf_counter_ns(), time.thread_time_ns()
        batch.run()
        self.device.synchronize()
        took, busy = time.perf_counter_ns() - begun, time.thread_time_ns() - busy
        if batch.calls[0] is self.candidate:
            self.cpu_ns = min(self.cpu_ns, busy / len(batch.calls))
        return took


def among(bench: Bench, schedules: Sequence[str]) -> dict[str, Any]:
    """Build these schedules and time them in turn; one that is clearly slower is left. The results of the fastest are
    compared: if they are wrong, it is the next one's turn."""
    calls = {0: bench.best}
    for number, schedule in enumerate(schedules[1:], 1):
        with suppress(KernmillError):
            calls[number] = bench.call(schedule)
    single = {number: bench.busy_ns(call, 1) for number, call in calls.items()}  # code and data come in
    counts = {n: 1 if bench.in_place else max(1, min(100, int(_LOOK_NS // ns))) for n, ns in single.items()}
    least = dict.fromkeys(calls, float("inf"))
    for look in range(_LOOKS):
        limit = (_CLEARLY if look >= _FIRST_ROUNDS else _HOPELESS) * min(least.values())
        for number in [n for n in calls if not look or least[n] <= limit]:
            least[number] = min(least[number], bench.busy_ns(calls[number], counts[number]))
    times, wrong = [least.get(number) for number in range(len(schedules))], dict[int, str]()
    for best in sorted(least, key=lambda number: least[number]):
        for number in (0, best) * _LOOKS if best else ():  # again: noise does not win twice
            least[number] = min(least[number], bench.busy_ns(calls[number], counts[number]))
        if best == 0 or least[best] > _FASTER * least[0]:
            break
        try:
            bench.run_checked(calls[best])
            return {"cpu_ns": times, "best": best, "wrong": wrong}
        except KernmillError as error:
            wrong[best] = str(error)
    return {"cpu_ns": times, "best": 0, "wrong": wrong}


def main() -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever prints does not come between
    bench: Bench | None = None

    def send(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "kernel" in request:
                kernel = kernel_from_text(request["kernel"], request["device"])
                bench = Bench(kernel, request["reference"], request.get("schedule", request["reference"]))
                if "among" in request:
                    send(among(bench, request["among"]))
                    continue
                ratios, times = bench.compare(bench.best, bench.best, to_the_end=True)
                low, _, high = statistics.quantiles(ratios, n=4)
                noise, cpu_ns = (high - low) / 2, bench.cpu_ns
                answer: dict[str, Any] = {"time_ns": statistics.median(times), "noise": noise, "cpu_ns": cpu_ns}
            elif bench is None:
                answer = {"refused": "no kernel is loaded yet"}
            elif "try" in request:
                answer = bench.attempt(request["try"], to_the_end="to_the_end" in request)
            else:
                bench.best = bench.candidate
                answer = {}
        except Exception as error:  # the answer goes to the parent process
            answer = {"refused": f"{type(error).__name__}: {error}"}
        send(answer)
