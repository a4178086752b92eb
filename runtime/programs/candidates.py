"""Every candidate that a search measures, with its time: what an estimate of times is compared with.

Times are those of the thread's CPU clock: it stops while another program has the core. Records of one kernel, target
and number of threads are one entry of the cache, a candidate a line. Tests: tests/runtime/programs/test_candidates.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from kernmill.ir import Kernel, setting

from ..device import Device
from .compile_cache import cache_key, default_cache
from .kernel_text import kernel_to_text

__all__ = ["Candidate", "recorded_candidates", "store_candidates"]

_MOST = 1000  # candidates of a kernel that are kept: the newest


class Candidate(NamedTuple):
    """A schedule that was measured. Units: nanoseconds of one launch, by the CPU clock of the launching thread."""

    schedule: str  # actions, separated by "; "
    cpu_ns: float


def store_candidates(device: Device, kernel: Kernel, found: Iterable[Candidate]) -> None:
    """Add candidates to those that earlier searches recorded; of equal schedules the shorter time is kept."""
    times = dict(recorded_candidates(device, kernel))
    for schedule, cpu_ns in found:
        times[schedule] = min(cpu_ns, times.pop(schedule, cpu_ns))
    if times:
        lines = "\n".join(json.dumps(one) for one in list(times.items())[-_MOST:])
        facts = {"name": kernel.name, "machine": device.cache_tag(), "threads": setting("THREADS")}
        default_cache("candidates").put(
            _record_key(device, kernel), lines.encode(), {**facts, "kernel": kernel_to_text(kernel)}
        )


def recorded_candidates(device: Device, kernel: Kernel) -> list[Candidate]:
    """Return the candidates of a kernel that searches on this machine have measured; none of a damaged entry."""
    entry = default_cache("candidates").get(_record_key(device, kernel))
    if entry is None:
        return []
    try:
        return [Candidate(str(text), float(cpu_ns)) for text, cpu_ns in map(json.loads, entry.payload.splitlines())]
    except (ValueError, TypeError):
        return []


def _record_key(device: Device, kernel: Kernel) -> str:
    return cache_key("candidates", kernel.key, device.tag, str(setting("THREADS")))
