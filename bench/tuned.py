"""`python -m bench.tuned`: the heuristic's schedules against the best that a search finds, for the bench set's kernels.

The rows are those of the table (`python -m bench --list`); each is run once to see its kernels. Each kernel is searched
for the same time; its ratio is the heuristic's time by that of the best schedule found, both timed in turn.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .__main__ import chosen_rows, unless_cut_off
from .figures import digits, show_seconds
from .machine import machine, machine_line
from .measure import EXPRESSION_ROWS
from .row import Row, Setup
from .table import as_row

__all__ = ["Line", "lines_of", "main", "markdown"]

_ENOUGH = 1.10  # the heuristic is to be within this of the search


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


def lines_of(row: Row, seconds: float, beam: int, *, tiny: bool = False) -> Iterator[Line]:
    """Search for the kernels that the row launches, one by one."""
    from kernmill.runtime import collecting_kernels, get_device, tune_kernel

    with collecting_kernels() as seen:
        row.prepare(Setup(peers=("kernmill",), sample_s=0.0, tiny=tiny))
    for (device, _), (kernel, _) in seen.items():
        found = tune_kernel(get_device(device), kernel, width=beam, seconds=seconds)
        text = "; ".join(str(action) for action in found.schedule)
        times = found.heuristic_ns * 1e-9, found.time_ns * 1e-9
        yield Line(row.name, kernel.name, *times, found.tried, len(found.wrong), text)


def markdown(facts: dict[str, Any], lines: Sequence[Line], seconds: float, threads: str) -> str:
    """The machine, the table, and how many kernels are within 10 %."""
    within = sum(line.ratio <= _ENOUGH for line in lines)
    text = [f"{machine_line(facts)}, THREADS={threads}.", "",
            f"{seconds:g} s of search a kernel. x: the heuristic's time by the best schedule's. "
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
        "rows", nargs="*", metavar="ROW", help="names or patterns; all that are one expression without any"
    )
    parser.add_argument("--seconds", type=float, default=30, help="of search, for each kernel (default %(default)s)")
    parser.add_argument("--beam", type=int, default=4, help="schedules kept at a time (default %(default)s)")
    parser.add_argument("--threads", default="1", help="of the device (default %(default)s)")
    arguments = parser.parse_args(given)
    rows = chosen_rows(arguments.rows) if arguments.rows else EXPRESSION_ROWS
    os.environ["THREADS"] = arguments.threads
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="kernmill-tuned-") as folder:
        os.environ["CACHE_DIR"] = folder  # the heuristic's choice is the start, whatever was found before
        try:
            for line in (line for row in rows for line in lines_of(row, arguments.seconds, arguments.beam)):
                print(f"{line.row} {line.kernel}: {digits(line.ratio)}x, {line.tried} tried", file=sys.stderr)
                lines.append(line)
        except KeyboardInterrupt:
            print("Interrupted: the table of what was searched until then.")
    print(markdown(machine(), lines, arguments.seconds, arguments.threads))
    return 1 if any(line.wrong for line in lines) else 0


if __name__ == "__main__":
    sys.exit(unless_cut_off(main))
