"""Times of candidates: of each kernel the heuristic's schedule, the empty one, and random walks from both.

Each candidate is built and timed in a worker process by the CPU clock of its thread, as a search does it. A busy
machine makes that slower, and it changes these times much less than the wall clock's.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .files import Measured

__all__ = ["measured", "sample_of", "walks"]

_START_S, _CANDIDATE_S = 120.0, 10.0
_STEPS = (1, 1, 1, 2, 2, 3)  # of a walk
_MORE = 4  # times as many walks as candidates are begun


def walks(ast: Any, heuristic: list[Any], target: Any, rng: random.Random) -> Iterator[list[Any]]:
    """Yield schedules: the heuristic's, the empty one, then neighbours of these and of each other; no kernel twice."""
    from kernmill.compiler import neighbours, optimized

    seen, starts = set[Any](), [heuristic, []]
    for schedule in starts:
        if (done := optimized(ast, schedule)) is not None and done not in seen:
            seen.add(done)
            yield schedule
    while True:
        schedule, done = rng.choice([starts[0], starts[0], rng.choice(starts)]), None
        for _ in range(rng.choice(_STEPS)):
            schedule, done = next(neighbours(ast, schedule, target, rng), (schedule, done))
        if done is not None and done not in seen:
            seen.add(done)
            starts.append(schedule)
            yield schedule
        else:
            yield []


def sample_of(kernels: dict[str, Any], count: int, seed: int) -> dict[str, Any]:
    """Return up to `count` of the kernels, drawn by a seed; all for a count of 0."""
    names = random.Random(seed).sample(sorted(kernels), min(count, len(kernels))) if count else list(kernels)
    return {name: kernels[name] for name in names}


def measured(kernels: dict[str, Any], count: int, seconds: float, notes: Path) -> Iterator[Measured]:
    """Measure up to `count` candidates of each kernel, in at most about `seconds` each. `notes`: lines of kernels that
    are done, so that an interrupted run goes on."""
    from kernmill.compiler import merge_loops
    from kernmill.runtime import Worker, get_device, heuristic_schedule

    lines = notes.read_text().splitlines() if notes.exists() else []
    done = {name: dict[str, float](times) for name, times in map(json.loads, lines)}
    worker = Worker()
    try:
        for name, kernel in kernels.items():
            if name not in done:
                device = get_device(kernel.device)
                heuristic = heuristic_schedule(device, kernel)
                rng = random.Random(kernel.ast.key)
                tried = walks(merge_loops(kernel.ast), heuristic, device.target, rng)
                done[name] = _times(worker, kernel, tried, count, seconds)
                with notes.open("a") as file:
                    file.write(json.dumps([name, done[name]]) + "\n")
            yield Measured(name, done[name])
    finally:
        worker.close()


def _times(worker: Any, kernel: Any, tried: Iterator[list[Any]], count: int, seconds: float) -> dict[str, float]:
    from kernmill.runtime import CandidateLost, kernel_text

    first = "\n".join(map(str, next(tried)))
    begin = {"kernel": kernel_text.kernel_to_text(kernel), "device": kernel.device, "reference": first}
    times: dict[str, float] = {}
    deadline, is_known = time.monotonic() + seconds, False
    for _, schedule in zip(range(_MORE * count), tried, strict=False):
        try:
            if not is_known:
                answer = worker.ask({**begin, "schedule": first}, _START_S)
                is_known, deadline = True, time.monotonic() + seconds
                if "cpu_ns" not in answer:
                    return times
                times[first.replace("\n", "; ")] = float(answer["cpu_ns"])
            answer = worker.ask({"try": "\n".join(map(str, schedule))}, _CANDIDATE_S)
        except CandidateLost:
            is_known = False
            continue
        if "cpu_ns" in answer:
            times.setdefault("; ".join(map(str, schedule)), float(answer["cpu_ns"]))
        if len(times) >= count or time.monotonic() > deadline:
            break
    return times
