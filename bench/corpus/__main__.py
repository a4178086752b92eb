"""`python -m bench.corpus kernels` and `python -m bench.corpus measure`: write the files of the corpus again."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from .files import load_kernels, save_kernels, save_times
from .measure import measured


def main() -> int:
    """Write the kernels, or the times of their candidates."""
    parser = argparse.ArgumentParser(prog="python -m bench.corpus", description=__doc__)
    parser.add_argument("what", choices=("kernels", "measure"))
    parser.add_argument("--candidates", type=int, default=22, help="of each kernel (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=12, help="for each kernel, at most (default %(default)s)")
    parser.add_argument("--machine", default="zen4", help="its name, which is that of the file (default %(default)s)")
    parser.add_argument("--notes", type=Path, help="a file of kernels that are done: an interrupted run goes on")
    arguments = parser.parse_args()
    os.environ["THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="kernmill-corpus-") as folder:
        os.environ["CACHE_DIR"] = folder
        if arguments.what == "kernels":
            from bench.tuned import TUNED_ROWS, kernels_of

            save_kernels((row, kernel) for row, _, kernel in kernels_of(TUNED_ROWS))
            return 0
        notes, found = arguments.notes or Path(folder) / "notes", []
        for one in measured(load_kernels(), arguments.candidates, arguments.seconds, notes):
            found.append(one)
            print(f"{one.kernel}: {len(one.times)} candidates", file=sys.stderr)
        save_times(arguments.machine, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
