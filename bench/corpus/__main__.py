"""`python -m bench.corpus WHAT`: files of the corpus; how good choice and estimate are, and how long choosing takes."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .choice import choice_text, seconds_text
from .constants import Readers, constants
from .files import load_kernels, load_times, model_kernels, save_kernels, save_times
from .measure import measured, sample_of
from .models import kernels_of_models
from .rank import fitted, left_out, rank, read_works, summary
from .tried import Tried, tried, tried_text


def compare(machine: str, rounds: int) -> None:
    """Print how well the estimate ranks the candidates of a machine, and the same for fitted rows."""
    from kernmill.runtime import get_device

    target = get_device("LLVM").target
    planned = read_works(load_kernels(), load_times(machine), target, is_planned=True)
    print(f"read off the loops: {summary(rank(planned, target))}", flush=True)
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


def number_constants() -> None:
    """Print the named numbers of the optimizer, and for each a kernel that it decides."""
    from tests.compiler.corpus import TARGETS, kernels

    found = [one for one in constants() if not one.is_of_the_search]
    readers, without = Readers(kernels(), TARGETS), 0
    for one in found:
        effect = readers.first_effect(one)
        without += not effect
        print(f"{one.module}.{one.name} = {one.value}: {effect or 'no schedule changes'}", flush=True)
    print(f"{len(found)} numbers decide about schedules; {without} of them change none of the corpus.")


def write_kernels(models: Path | None) -> None:
    """Collect the kernels again. Those of models are unchanged where their files are not given."""
    from bench.tuned import TUNED_ROWS, kernels_of

    found = [(row, kernel) for row, _, kernel in kernels_of(TUNED_ROWS)]
    save_kernels([*found, *(kernels_of_models(models) if models else model_kernels())])


def write_times(arguments: argparse.Namespace, folder: Path) -> None:
    """Measure candidates of the kernels, or of some of them, and keep the times with those that are known."""
    kernels = sample_of(load_kernels(), arguments.sample, arguments.seed)
    known = {one.kernel: one for one in load_times(arguments.machine)} if arguments.sample else {}
    notes = arguments.notes or folder / "notes"
    for one in measured(kernels, arguments.candidates, arguments.seconds, notes):
        known[one.kernel] = one
        print(f"{one.kernel}: {len(one.times)} candidates", file=sys.stderr)
    save_times(arguments.machine, known.values())


def compare_tries(kernels: Mapping[str, Any], seconds: float) -> None:
    """Print how far TRY=3 is from a search, for each kernel and for all."""
    found: list[Tried] = []
    for one in tried(kernels, seconds):
        found.append(one)
        print(f"{one.kernel:50} TRY {one.ratio:.2f}  heuristic {one.heuristic:.2f}", flush=True)
    print(tried_text(found))


def main() -> int:
    """Write the kernels, or the times of their candidates; compare choice and estimate with these."""
    parser = argparse.ArgumentParser(prog="python -m bench.corpus", description=__doc__)
    parser.add_argument("what", choices=("kernels", "measure", "rank", "fit", "choice", "try", "seconds", "constants"))
    parser.add_argument("--candidates", type=int, default=22, help="of each kernel (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=12, help="for each kernel, at most (default %(default)s)")
    parser.add_argument("--machine", default="zen4", help="its name, which is that of the file (default %(default)s)")
    parser.add_argument("--notes", type=Path, help="a file of kernels that are done: an interrupted run goes on")
    parser.add_argument("--rounds", type=int, default=2, help="of a fit, which takes hours (default %(default)s)")
    parser.add_argument("--sample", type=int, default=0, help="measure or try only up to N kernels, drawn by --seed")
    parser.add_argument("--seed", type=int, default=33, help="of the sample (default %(default)s)")
    parser.add_argument(
        "--models", type=Path, metavar="FOLDER", help="of ONNX files, whose kernels are collected again"
    )
    arguments = parser.parse_args()
    os.environ["THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="kernmill-corpus-") as folder:
        os.environ["CACHE_DIR"] = folder
        match arguments.what:
            case "kernels":
                write_kernels(arguments.models)
            case "measure":
                write_times(arguments, Path(folder))
            case "choice":
                print(choice_text(load_times(arguments.machine)))
            case "try":
                compare_tries(sample_of(load_kernels(), arguments.sample, arguments.seed), arguments.seconds)
            case "seconds":
                print(seconds_text(load_kernels()))
            case "constants":
                number_constants()
            case _:
                compare(arguments.machine, arguments.rounds if arguments.what == "fit" else 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
