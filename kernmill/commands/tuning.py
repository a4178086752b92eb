"""`kernmill tune`: run a program, collect its kernels, search for a schedule of each, store the results."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from kernmill.ir import Kernel, KernmillError
from kernmill.runtime import Tuned, Worker, collecting_kernels, compile_cache, get_device, schedules, tune_kernel

from .program import run_program

__all__ = ["Found", "ProgressLine", "collect", "run", "tune_all"]

_FASTER = 1.01  # of the time of the heuristic's schedule: less is noise
_BUSY = 1.5  # runnable threads for each core: this program's own kernels take one
_LEAST_SHARE = 0.02  # of the time, for a kernel that takes next to none of the program's


@dataclass(slots=True)
class Found:
    """A kernel of the program, its share of the kernel time, and whether it was searched before."""

    device: str
    kernel: Kernel
    share: float
    is_known: bool = False


def collect(program: str, arguments: Sequence[str]) -> tuple[list[Found], bool]:
    """Run a script or a module; return the kernels that it launched, and whether it succeeded.

    New kernels come before those that were searched already, each sorted by time.

    Raises:
        KernmillError: the program cannot be found.
    """
    with collecting_kernels() as seen:
        ended_well = run_program("tune", program, arguments, "the kernels that it launched are still tuned")
    whole = sum(time_ns for _, time_ns in seen.values()) or 1
    found = [
        Found(device, kernel, time_ns / whole, schedules.stored_schedule(get_device(device), kernel) is not None)
        for (device, _), (kernel, time_ns) in seen.items()
    ]
    return sorted(found, key=lambda f: (f.is_known, -f.share)), ended_well


class ProgressLine:
    """The progress output: on a terminal one line that changes, elsewhere a line per kernel."""

    def __init__(self, stream: TextIO, count: int, deadline: float) -> None:
        self.stream, self.count, self.deadline = stream, count, deadline
        self.number = 0
        self.is_terminal = stream.isatty()

    def changing(self, found: Tuned) -> None:
        """A candidate was tried."""
        if self.is_terminal:
            left = max(0.0, self.deadline - time.monotonic())
            self.stream.write(f"\r\x1b[2K{self.text(found)}, {left:.0f} s left")
            self.stream.flush()

    def done(self, found: Tuned) -> None:
        """The search for a kernel has ended."""
        self.stream.write(f"\r\x1b[2K{self.text(found)}\n" if self.is_terminal else f"{self.text(found)}\n")
        self.stream.flush()

    def text(self, found: Tuned) -> str:
        """Return the line of one kernel: its times and the number of candidates."""
        faults = [f"{count} {word}" for count, word in
                  ((found.refused, "refused"), (found.lost, "lost"), (len(found.wrong), "WRONG")) if count]  # fmt: skip
        return (
            f"[{self.number}/{self.count}] {found.kernel.name}: {found.heuristic_ns / 1e3:.1f} us -> "
            f"{found.time_ns / 1e3:.1f} us ({found.speedup:.2f}x), {', '.join([f'{found.tried} tried', *faults])}"
        )


def tune_all(kernels: Sequence[Found], seconds: float, width: int, stream: TextIO) -> list[Tuned]:
    """Search for each kernel, for a time proportional to its share; kernels that were searched before get the time
    that new ones leave. Results are stored after each."""
    deadline = time.monotonic() + seconds
    line = ProgressLine(stream, len(kernels), deadline)
    done: list[Tuned] = []
    worker = Worker()
    try:
        for number, found in enumerate(kernels):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            shares = [max(_LEAST_SHARE, other.share) for other in kernels[number:] if other.is_known is found.is_known]
            line.number = number + 1
            try:
                result = tune_kernel(
                    get_device(found.device), found.kernel, width=width, seconds=left * shares[0] / sum(shares),
                    progress=line.changing, worker=worker,
                )  # fmt: skip
            except KernmillError as error:
                stream.write(f"[{line.number}/{line.count}] {found.kernel.name}: not tuned: {error}\n")
                continue
            line.done(result)
            done.append(result)
    finally:
        worker.close()
    return done


def run(program: str, arguments: Sequence[str], seconds: float, width: int) -> int:
    """The command; 1 when the program failed or a schedule gave wrong results, else 0."""
    kernels, ended_well = collect(program, arguments)
    if not kernels:
        print(f"kernmill tune: {program} launches no kernel, so there is nothing to tune", file=sys.stderr)
        return 0 if ended_well else 1
    known = sum(found.is_known for found in kernels)
    before = f", {known} of them searched before" if known else ""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > _BUSY * cores:
        print(
            f"kernmill tune: the machine is busy (load {load:.1f} on {cores} cores), so times may be misleading. "
            "Stop "
              "other programs, or tune again later.", file=sys.stderr)  # fmt: skip
    print(f"{len(kernels)} kernels in {program}{before}; {seconds:g} s to tune them", file=sys.stderr)
    done = tune_all(kernels, seconds, width, sys.stderr)
    shares = {f.kernel.ast: f.share for f in kernels}
    after = 1 - sum(shares[d.kernel.ast] * (1 - d.time_ns / d.heuristic_ns) for d in done if d.heuristic_ns)
    print(f"{len(done)} of {len(kernels)} kernels searched; estimated speedup of all kernels: {1 / after:.2f}x. "
          f"{_kept(done)}", file=sys.stderr)  # fmt: skip
    return 1 if not ended_well or any(d.wrong for d in done) else 0


def _kept(done: Sequence[Tuned]) -> str:
    """Report whether later processes will find the results."""
    facts = compile_cache.default_cache("schedules").info()
    if facts["folder"] is None or facts["read_only"] or not facts["usable"]:
        why = "CACHE=0" if facts["folder"] is None else "CACHE=ro" if facts["read_only"] else "no folder for the cache"
        return f"No schedule is stored ({why}); DEBUG=3 prints schedules, OVERRIDE uses written ones."
    if not done:
        return "No schedule is stored. Give more --seconds."
    if not any(found.speedup >= _FASTER for found in done):
        return "No schedule was faster by 1 % or more."
    return "The schedules are stored and will be used from now on (BEAM=0 ignores them)."
