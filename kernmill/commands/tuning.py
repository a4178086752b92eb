"""`kernmill tune`: run a program, collect its kernels, search for a schedule of each, store the results."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

from kernmill.ir import Kernel, KernmillError, Progress, UOp, show_ns
from kernmill.runtime import Tuned, Worker, collecting_kernels, compile_cache, get_device, schedules, tune_kernel

from .program import run_program

__all__ = ["Found", "before_and_after", "collect", "line_of", "run", "tune_all"]

_FASTER = 1.01  # of the time of the heuristic's schedule: less is noise
_STEADY = 0.02  # noise below
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


def line_of(found: Tuned) -> str:
    """Return the line of one kernel: its times and the number of candidates."""
    faults = [f"{count} {word}" for count, word in
              ((found.refused, "refused"), (found.lost, "lost"), (len(found.wrong), "WRONG")) if count]  # fmt: skip
    return (
        f"{found.kernel.name}: {found.heuristic_ns / 1e3:.1f} us -> "
        f"{found.time_ns / 1e3:.1f} us ({found.speedup:.2f}x), {', '.join([f'{found.tried} tried', *faults])}"
    )


def tune_all(kernels: Sequence[Found], seconds: float, width: int, stream: TextIO) -> list[Tuned]:
    """Search for each kernel, for a time proportional to its share; kernels that were searched before get the time
    that new ones leave. Results are stored after each."""
    deadline = time.monotonic() + seconds
    done: list[Tuned] = []
    worker = Worker()
    try:
        with Progress("tuning", len(kernels), "kernel") as bar:
            for number, found in enumerate(kernels):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                alike = [other for other in kernels[number:] if other.is_known is found.is_known]
                shares = [max(_LEAST_SHARE, other.share) for other in alike]
                counter = f"[{number + 1}/{len(kernels)}]"
                try:
                    result = tune_kernel(
                        get_device(found.device), found.kernel, width=width, seconds=left * shares[0] / sum(shares),
                        progress=lambda now: bar.advance(0, line_of(now)), worker=worker,
                    )  # fmt: skip
                except KernmillError as error:
                    bar.above(stream.write, f"{counter} {found.kernel.name}: not tuned: {error}\n")
                    continue
                bar.above(stream.write, f"{counter} {line_of(result)}\n")
                bar.advance()
                stream.flush()
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
    if done:
        print("\n".join(before_and_after(done, shares)), file=sys.stderr)
    if len(done) < len(kernels):
        print("for the others the time was too short: give more --seconds, or tune again, which begins with them",
              file=sys.stderr)  # fmt: skip
    print(f"{len(done)} of {len(kernels)} kernels searched; estimated speedup of all kernels: {1 / after:.2f}x. "
          f"{_kept(done)}", file=sys.stderr)  # fmt: skip
    return 1 if not ended_well or any(d.wrong for d in done) else 0


def before_and_after(done: Sequence[Tuned], shares: Mapping[UOp, float]) -> list[str]:
    """Return a table: a line per kernel, those with the greatest share first; then how steady the machine was."""
    heads = ("share", "before", "after", "gain", "noise", "schedule", "line", "kernel")
    rows: list[tuple[str, ...]] = [heads]
    for found in sorted(done, key=lambda found: -shares[found.kernel.ast]):
        is_faster = found.speedup >= _FASTER
        rows.append((
            f"{shares[found.kernel.ast]:.1%}", show_ns(found.heuristic_ns), show_ns(found.time_ns),
            f"{found.speedup - 1:+.1%}", f"{found.noise:.1%}", "found" if is_faster else "unchanged",
            os.path.basename(found.kernel.origin or ""), found.kernel.name,
        ))  # fmt: skip
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([cell.rjust(size) if number < 5 else cell.ljust(size) for number, (cell, size) in
                        enumerate(zip(row, sizes, strict=True))]).rstrip() for row in rows]  # fmt: skip
    noise = statistics.median(found.noise for found in done)
    how = "steady enough" if noise < _STEADY else "unsteady: stop other programs and tune again for small gains"
    return [*lines, f"times of the same program differed by {noise:.1%} (median), so the machine was {how}"]


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
