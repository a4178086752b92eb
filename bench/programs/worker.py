"""A process of one library and one program: prepares it, reports its first calls, then takes a sample for each line.

It prints a line of JSON for each: first seconds, values, peak bytes and compilations; then seconds of a call.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..timing import call_sampler
from .program import Call, Sizes
from .suite import PROGRAMS

__all__ = ["made", "results_of", "work"]

FIRST_CALLS = 3
SHOWN = 500  # values of a result that are compared


def flat(result: Any) -> list[Any]:
    return [one for part in result for one in flat(part)] if isinstance(result, (list, tuple)) else [result]


def made(name: str, library: str, mode: str, is_tiny: bool = False) -> Call:
    """The program's call, its results in memory when it returns."""
    program = PROGRAMS[name]
    module = importlib.import_module(f"bench.programs.{library.split('.')[0]}_{program.family}")
    sizes = Sizes(program.tiny if is_tiny else program.sizes)
    call: Call = getattr(module, name)(sizes, wrapper(library, mode))
    if library != "kernmill" or program.family == "eager":
        return call

    def realized() -> Any:
        result = call()
        first, *others = flat(result)
        first.realize(*others)
        return result

    return realized


def wrapper(library: str, mode: str) -> Callable[..., Any]:
    """What converts a function to its captured or compiled form."""
    if library == "torch.compile":
        return importlib.import_module("torch").compile  # type: ignore[no-any-return]
    if library == "kernmill" and mode != "eager":
        return importlib.import_module("kernmill").jit  # type: ignore[no-any-return]
    return lambda function: function


def results_of(result: Any) -> list[float]:
    """Some of the values, evenly spread, and their number."""
    found: list[float] = []
    for one in flat(result):
        array = np.asarray(one.numpy() if hasattr(one, "numpy") else one, np.float64).ravel()
        found += [float(array.size), *array[:: max(1, array.size // SHOWN)].tolist()]
    return found


def memory(field: str) -> int:
    """Bytes of a field of /proc/self/status; 0 where the system has none."""
    file = Path("/proc/self/status")
    lines = file.read_text().splitlines() if file.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), 0)


def work(name: str, library: str, mode: str, threads: int, *, is_tiny: bool, clock: str) -> None:
    """Prepares, reports, and answers each line of stdin with a sample."""
    module = importlib.import_module(library.split(".")[0])
    if library.startswith("torch"):
        module.set_num_threads(threads)
    before = memory("VmRSS")
    call = made(name, library, mode, is_tiny)
    seconds, values = [], []
    for _ in range(1 if PROGRAMS[name].family == "eager" else FIRST_CALLS):
        start = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - start)
        values.append(results_of(result))
    counters = importlib.import_module("kernmill.runtime").counters if library == "kernmill" else None
    facts = {"first_s": seconds, "values": values, "peak": memory("VmHWM") - before,
             "compiled": counters.compiled if counters else 0}  # fmt: skip
    print(json.dumps(facts), flush=True)
    sample = call_sampler(call, 0.02, threads, clock=time.process_time if clock == "cpu" else time.perf_counter)
    for _ in sys.stdin:
        print(sample(), flush=True)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if folder := given.pop("folder"):
        sys.path.insert(0, folder)  # an old checkout's kernmill, with this checkout's programs
    work(**given)
