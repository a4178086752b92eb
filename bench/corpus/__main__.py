"""`python -m bench.corpus kernels | measure | rank | fit`: write the files of the corpus, compare the estimate."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from .files import load_kernels, load_times, save_kernels, save_times
from .measure import measured
from .rank import fitted, left_out, rank, read_works, summary


def compare(machine: str, rounds: int) -> None:
    """Print how well the estimate ranks the candidates of a machine, and the same for fitted rows."""
    from kernmill.runtime import get_device

    target = get_device("LLVM").target
    found = read_works(load_kernels(), load_times(machine), target)
    lines = rank(found, target)
    for one in sorted(lines, key=lambda line: line.correlation)[:20]:
        firsts = ", ".join(f"{ratio:.2f}" for ratio in one.first)
        print(f"{one.kernel:50} correlation {one.correlation:5.2f}  first 1, 3, 5: {firsts}  error x{one.error:.1f}")
    print(f"row {target.machine.name}: {summary(lines)}")
    if rounds:
        print(f"left out of the fit: {summary(left_out(found, target, rounds))}")
        row = fitted(found, target, rounds)
        print(f"fitted: {summary(rank(found, row))}\n{row.machine}")


def main() -> int:
    """Write the kernels, or the times of their candidates; rank these, or fit the machine's row to them."""
    parser = argparse.ArgumentParser(prog="python -m bench.corpus", description=__doc__)
    parser.add_argument("what", choices=("kernels", "measure", "rank", "fit"))
    parser.add_argument("--candidates", type=int, default=22, help="of each kernel (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=12, help="for each kernel, at most (default %(default)s)")
    parser.add_argument("--machine", default="zen4", help="its name, which is that of the file (default %(default)s)")
    parser.add_argument("--notes", type=Path, help="a file of kernels that are done: an interrupted run goes on")
    parser.add_argument("--rounds", type=int, default=2, help="of a fit, which takes hours (default %(default)s)")
    arguments = parser.parse_args()
    os.environ["THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="kernmill-corpus-") as folder:
        os.environ["CACHE_DIR"] = folder
        if arguments.what == "kernels":
            from bench.tuned import TUNED_ROWS, kernels_of

            save_kernels((row, kernel) for row, _, kernel in kernels_of(TUNED_ROWS))
            return 0
        if arguments.what in ("rank", "fit"):
            compare(arguments.machine, arguments.rounds if arguments.what == "fit" else 0)
            return 0
        notes, found = arguments.notes or Path(folder) / "notes", []
        for one in measured(load_kernels(), arguments.candidates, arguments.seconds, notes):
            found.append(one)
            print(f"{one.kernel}: {len(one.times)} candidates", file=sys.stderr)
        save_times(arguments.machine, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
