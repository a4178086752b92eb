"""The choice without measuring: its time against the best candidate that was measured, and the time that it takes."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterable, Mapping
from typing import Any

from .files import Measured

__all__ = ["choice_text", "seconds_text"]

_LEAST = 8  # candidates
_WORST = 10  # that are named


def choice_text(measured: Iterable[Measured]) -> str:
    """The share of kernels whose chosen schedule is within 10 % of the best candidate, and those farthest from it."""
    ratios: dict[str, float] = {}
    for one in measured:
        chosen, *_ = times = [*one.times.values()] or [0.0]
        if len(times) >= _LEAST:
            ratios[one.kernel] = chosen / min(times)
    if not ratios:
        return (
            "No kernel with at least 8 candidates was measured on this machine: run `python -m bench.corpus measure`."
        )
    worst = sorted(ratios, key=lambda name: -ratios[name])[:_WORST]
    lines = [f"{ratios[name]:.2f}  {name}" for name in worst]
    within = statistics.mean(ratio <= 1.1 for ratio in ratios.values())
    beyond = sum(ratio > 1.5 for ratio in ratios.values())
    lines += [f"{len(ratios)} kernels: {within:.0%} within 10 % of the best candidate, {beyond} above 1.5 times it; "
              f"geometric mean {statistics.geometric_mean(ratios.values()):.3f}"]  # fmt: skip
    return "\n".join(lines)


def seconds_text(kernels: Mapping[str, Any]) -> str:
    """CPU time of choosing the loops of each kernel, once."""
    from kernmill.compiler import choose, merge_loops
    from kernmill.runtime import get_device

    target = get_device("LLVM").target
    asts = {name: merge_loops(kernel.ast) for name, kernel in kernels.items()}
    took: dict[str, float] = {}
    gc.disable()
    for name, ast in asts.items():
        begun = time.thread_time_ns()
        choose(ast, target)
        took[name] = (time.thread_time_ns() - begun) / 1e6
    gc.enable()
    slowest = sorted(took, key=lambda name: -took[name])[:_WORST]
    lines = [f"{took[name]:5.1f} ms  {name}" for name in slowest]
    low, middle, high = statistics.quantiles(took.values(), n=4)
    lines += [f"{len(took)} kernels: {middle:.1f} ms in the median, quartiles {low:.1f} and {high:.1f}, "
              f"{statistics.mean(took.values()):.1f} in the mean"]  # fmt: skip
    return "\n".join(lines)
