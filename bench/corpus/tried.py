"""`TRY=3` against a search of some seconds: the schedules of both, timed again in turn by the clock of their thread."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

__all__ = ["Tried", "tried", "tried_text"]

_COUNT = 3
_LIMIT_S = 120.0
_WITHIN = 1.03


class Tried(NamedTuple):
    """One kernel: the time of TRY's schedule and of the heuristic's by that of the search, and its measurements."""

    kernel: str
    ratio: float
    heuristic: float
    measured: int


def tried(kernels: Mapping[str, Any], seconds: float) -> Iterator[Tried]:
    """Search for each kernel and measure three of its candidates; compare what they find."""
    from kernmill.compiler import parse_schedule, show_schedule
    from kernmill.runtime import Worker, get_device, heuristic_schedule, kernel_text, try_candidates, tune_kernel

    worker = Worker()
    try:
        for name, kernel in kernels.items():
            device = get_device(kernel.device)
            found = tune_kernel(device, kernel, seconds=seconds, worker=worker)
            best, heuristic = show_schedule(found.schedule), show_schedule(heuristic_schedule(device, kernel))
            first = show_schedule(parse_schedule(try_candidates(device, kernel, _COUNT, worker)))
            given = {"kernel": kernel_text.kernel_to_text(kernel), "device": kernel.device, "reference": heuristic}
            times = {best: float(worker.ask({**given, "schedule": best}, _LIMIT_S)["cpu_ns"])}
            for text in (first, heuristic):
                if text not in times:
                    answer = worker.ask({"try": text, "to_the_end": ""}, _LIMIT_S)
                    times[text] = float(answer["cpu_ns"])
            yield Tried(name, times[first] / times[best], times[heuristic] / times[best], found.tried)
    finally:
        worker.close()


def tried_text(found: list[Tried]) -> str:
    """One line."""
    rows = [[one.ratio for one in found], [one.heuristic for one in found]]
    within, before = (statistics.mean(ratio <= _WITHIN for ratio in row) for row in rows)
    means = [statistics.geometric_mean(row) for row in rows]
    return (
        f"{len(found)} kernels: within 3 % of the search {within:.0%} with TRY={_COUNT}, {before:.0%} without; "
        f"geometric mean {means[0]:.3f} and {means[1]:.3f}; {statistics.mean(o.measured for o in found):.0f} "
        "candidates measured by a search"
    )
