"""`python -m bench.tuned`: the heuristic's schedules against the best that a search finds, for the bench set's kernels.

The rows are those of the table (`python -m bench --list`) that are one expression or a training step; each is run once
to see its kernels, but for those that only make its inputs. Each kernel is searched once, for the same time; its ratio
is the heuristic's time by that of the best schedule found, both timed in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .__main__ import chosen_rows, unless_cut_off
from .figures import digits, show_seconds
from .machine import machine, machine_line
from .measure import EXPRESSION_ROWS
from .row import Row, Setup
from .table import as_row
from .train_rows import TRAIN_ROWS

_STEPS = ("mlp_step", "convnet_step")
TUNED_ROWS: list[Row] = [*EXPRESSION_ROWS, *(row for row in TRAIN_ROWS if row.name in _STEPS)]

__all__ = ["TUNED_ROWS", "Line", "kernels_of", "lines_of", "main", "markdown"]

_ENOUGH = 1.10  # the heuristic is to be within this of the search
_BESIDE_S = 0.5  # what a search takes besides: data, the reference, the winner timed once more


@dataclass(frozen=True)
class Line:
    """One kernel of a row. Times in seconds."""

    row: str
    kernel: str
    heuristic_s: float
    found_s: float
    tried: int
    wrong: int
    schedule: str

    @property
    def ratio(self) -> float:
        """How much faster the search's schedule is."""
        return self.heuristic_s / self.found_s


def kernels_of(rows: Sequence[Row], *, tiny: bool = False) -> list[tuple[str, Any, Any]]:
    """The kernels that the rows launch, each once: the first row's name, the device's, and the kernel."""
    from kernmill.runtime import collecting_kernels

    found: dict[Any, tuple[str, Any, Any]] = {}
    for row in rows:
        with collecting_kernels() as seen:
            prepared = row.prepare(Setup(peers=("kernmill",), sample_s=0.0, tiny=tiny))
        if prepared.close:
            prepared.close()
        for (device, ast), (kernel, _) in seen.items():
            found.setdefault((device, ast), (row.name, device, kernel))
    return list(found.values())


def lines_of(kernels: Sequence[tuple[str, Any, Any]], seconds: float, beam: int, limit_s: float) -> Iterator[Line]:
    """Search for them one by one, for so many seconds, or for an equal share of what is left of the limit."""
    from kernmill.ir import KernmillError
    from kernmill.runtime import Worker, get_device, tune_kernel

    deadline, worker = time.monotonic() + limit_s, Worker()
    try:
        for number, (row, device, kernel) in enumerate(kernels):
            share = (deadline - time.monotonic()) / (len(kernels) - number) - _BESIDE_S
            try:
                found = tune_kernel(get_device(device), kernel, width=beam, seconds=min(seconds, share), worker=worker)
            except KernmillError as error:
                print(f"{row} {kernel.name}: not searched: {error}", file=sys.stderr)
                continue
            text = "; ".join(str(action) for action in found.schedule)
            times = found.heuristic_ns * 1e-9, found.time_ns * 1e-9
            yield Line(row, kernel.name, *times, found.tried, len(found.wrong), text)
    finally:
        worker.close()


def markdown(facts: dict[str, Any], lines: Sequence[Line]) -> str:
    """The machine, the table, and how many kernels are within 10 %."""
    within = sum(line.ratio <= _ENOUGH for line in lines)
    text = [f"{machine_line(facts)}, THREADS={facts['threads']}; {facts['when']}.", "",
            f"At most {facts['seconds']:g} s of search a kernel. x: the heuristic's time by the best schedule's. "
            f"{within} of {len(lines)} kernels are within 10 %.", "",
            as_row(["row", "kernel", "heuristic", "search", "x", "tried", "the search's schedule"]),
            as_row(["---", "---", "--:", "--:", "--:", "--:", "---"])]  # fmt: skip
    for line in sorted(lines, key=lambda one: -one.ratio):
        times = [show_seconds(line.heuristic_s), show_seconds(line.found_s), digits(line.ratio)]
        tried = f"{line.tried}" + (f", {line.wrong} WRONG" if line.wrong else "")
        shown = line.schedule if line.ratio > 1 else "the heuristic's"
        text.append(as_row([line.row, line.kernel, *times, tried, f"`{shown}`" if line.ratio > 1 else shown]))
    return "\n".join(text) + "\n"


def main(given: Sequence[str] | None = None) -> int:
    """1 when a schedule gave wrong results, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.tuned", description=__doc__)
    parser.add_argument(
        "rows", nargs="*", metavar="ROW", help="names or patterns; without any, all expressions and training steps"
    )
    parser.add_argument("--seconds", type=float, default=30, help="of search, for each kernel (default %(default)s)")
    parser.add_argument(
        "--beam", type=int, default=4, help="beam width: candidate schedules per step (default %(default)s)"
    )
    parser.add_argument("--threads", default="1", help="of the device (default %(default)s)")
    parser.add_argument("--limit", type=float, default=840, metavar="SECONDS",
                        help="for all kernels together, which then get less each (default %(default)s)")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the table, as in bench/results")
    arguments = parser.parse_args(given)
    rows = chosen_rows(arguments.rows) if arguments.rows else TUNED_ROWS
    os.environ["THREADS"] = arguments.threads
    lines: list[Line] = []
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kernmill-tuned-") as folder:
        os.environ["CACHE_DIR"] = folder  # the heuristic's choice is the start, whatever was found before
        try:
            kernels = kernels_of(rows)
            limit_s = arguments.limit - (time.monotonic() - begun)
            for line in lines_of(kernels, arguments.seconds, arguments.beam, limit_s):
                print(f"{line.row} {line.kernel}: {digits(line.ratio)}x, {line.tried} tried", file=sys.stderr)
                lines.append(line)
        except KeyboardInterrupt:
            print("Interrupted: the table of what was searched until then.")
    facts = {**machine(), "seconds": arguments.seconds, "threads": arguments.threads}
    print(markdown(facts, lines), end="")
    if arguments.json:
        content = {"machine": facts, "kernels": [asdict(line) for line in lines]}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 1 if any(line.wrong for line in lines) else 0


if __name__ == "__main__":
    sys.exit(unless_cut_off(main))
