"""The command line: `python -m bench`. Each number of threads gets a process of its own, all peers in the same one."""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .machine import machine
from .measure import ROWS, measure_all
from .peers import PEERS, has_jit, installed, missing, thread_environment
from .row import Outcome, Row, Setup
from .table import markdown

_FULL = Setup()
_QUICK = Setup(rounds=5, sample_s=0.003, row_s=3.0)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    made.add_argument("given", nargs="*", metavar="ROW", help="names or patterns (matmul_*); all without any")
    made.add_argument("--rows", default="", metavar="PATTERNS", help="the same, with commas: matmul_*,softmax")
    made.add_argument("--threads", default="1", help="numbers of threads, one run each: 1,2 (default 1)")
    made.add_argument(
        "--peers", default=",".join(Setup().peers), help=f"of {', '.join(PEERS)}, if installed (default: %(default)s)"
    )
    made.add_argument("--limit", type=float, default=720, metavar="SECONDS",
                      help="for each number of threads; rows left over are named (default: %(default)s)")  # fmt: skip
    made.add_argument("--quick", action="store_true", help="fewer and shorter samples: a look, no measurement")
    made.add_argument("--json", metavar="FILE", help="keep every sample, as in bench/results")
    made.add_argument("--show", nargs="+", metavar="FILE", help="nothing is run: the table of what --json kept")
    made.add_argument("--list", action="store_true", help="name the rows and stop")
    made.add_argument("--child", metavar="FILE", help=argparse.SUPPRESS)
    return made


def chosen_rows(patterns: Sequence[str]) -> list[Row]:
    """The rows that the patterns name, in the table's order. Raises SystemExit for a pattern that names none."""
    for pattern in patterns:
        if not any(fnmatch.fnmatch(row.name, pattern) for row in ROWS):
            raise SystemExit(f"bench: no row is named {pattern!r}. Rows: {', '.join(row.name for row in ROWS)}.")
    return [row for row in ROWS if not patterns or any(fnmatch.fnmatch(row.name, p) for p in patterns)]


def chosen_peers(text: str) -> tuple[str, ...]:
    """kernmill and the peers that are asked for and there. Raises SystemExit for an unknown name."""
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in PEERS:
            raise SystemExit(f"bench: there is no peer {name!r}. Peers: {', '.join(PEERS)}.")
        if not installed(name):
            print(f"bench: {name} is left out: not installed: {missing(name)}", file=sys.stderr)
    return tuple(dict.fromkeys(["kernmill", *(name for name in names if installed(name))]))


def thread_counts(text: str) -> list[int]:
    """1,2 as numbers. Raises SystemExit for anything else."""
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise SystemExit(f"bench: --threads {text}: give numbers above 0, for example 1,2.")
    return list(dict.fromkeys(int(part) for part in parts))


def run_child(rows: Sequence[Row], setup: Setup, arguments: argparse.Namespace) -> list[Outcome]:
    """The rows in a process whose environment holds the number of threads before anything is imported."""
    with tempfile.TemporaryDirectory(prefix="kernmill-bench-") as folder:
        file = Path(folder) / "outcomes.json"
        command = [sys.executable, "-m", "bench", *(row.name for row in rows), "--threads", str(setup.threads),
                   "--peers", ",".join(setup.peers), "--child", str(file)]  # fmt: skip
        command += ["--limit", str(arguments.limit), *(["--quick"] if arguments.quick else [])]
        done = subprocess.run(command, env=thread_environment(setup.threads), check=False)
        found = [Outcome(**one) for one in json.loads(file.read_text())] if file.exists() else []
        why = f"the process ended with {done.returncode}"
        return found + [Outcome(r.name, r.about, setup.threads, failed=why) for r in rows[len(found) :]]


def keep(file: Path, outcomes: Sequence[Outcome]) -> None:
    """For the parent, after each row: a library that ends the process takes no other row along."""
    file.with_suffix(".part").write_text(json.dumps([dataclasses.asdict(one) for one in outcomes]))
    file.with_suffix(".part").replace(file)


def as_json(facts: dict[str, Any], outcomes: Sequence[Outcome]) -> str:
    return json.dumps({"machine": facts, "rows": [dataclasses.asdict(o) for o in outcomes]}, indent=1) + "\n"


def as_kept(content: dict[str, Any]) -> tuple[dict[str, Any], list[Outcome]]:
    """The machine and the rows of one file."""
    return content["machine"], [Outcome(**one) for one in content["rows"]]


def kept(files: Sequence[str]) -> tuple[dict[str, Any], list[Outcome]]:
    """The machine and all rows of what --json wrote; of a row that was measured more than once, the last."""
    facts: dict[str, Any] = {}
    outcomes: dict[tuple[str, int], Outcome] = {}
    for file in files:
        found, rows = as_kept(json.loads(Path(file).read_text(encoding="utf-8")))
        facts = facts or {**found, "runs": len(files)}
        outcomes.update({(one.name, one.threads): one for one in rows})
    return facts, list(outcomes.values())


def measured(arguments: argparse.Namespace, rows: Sequence[Row]) -> tuple[dict[str, Any], list[Outcome]]:
    """The machine and every row: a run for each number of threads."""
    peers = chosen_peers(arguments.peers)
    base = dataclasses.replace(_QUICK if arguments.quick else _FULL, peers=peers)
    facts = {**machine(), "rounds": base.rounds}
    facts["jit"] = has_jit()
    facts["missing"] = {name: missing(name) for name in arguments.peers.split(",") if name in PEERS and missing(name)}
    outcomes: list[Outcome] = []
    for place, threads in enumerate(thread_counts(arguments.threads)):
        these = [row for row in rows if row.only_threads in (0, threads) and (place == 0 or not row.once)]
        if these:
            outcomes += run_child(these, dataclasses.replace(base, threads=threads), arguments)
    return facts, outcomes


def main(given: Sequence[str] | None = None) -> int:
    """1 when a row failed, else 0."""
    arguments = parser().parse_args(given)
    rows = chosen_rows([*arguments.given, *filter(None, arguments.rows.split(","))])
    if arguments.list:
        print("\n".join(f"{row.name:22} {row.about}" for row in rows))
        return 0
    if arguments.child:
        setup = dataclasses.replace(_QUICK if arguments.quick else _FULL, peers=chosen_peers(arguments.peers))
        setup = dataclasses.replace(setup, threads=thread_counts(arguments.threads)[0])
        file = Path(arguments.child)
        measure_all(rows, setup, arguments.limit, lambda found: keep(file, found))
        return 0
    facts, outcomes = kept(arguments.show) if arguments.show else measured(arguments, rows)
    order = {row.name: place for place, row in enumerate(ROWS)}
    outcomes.sort(key=lambda outcome: (order.get(outcome.name, len(order)), outcome.threads))
    text = markdown(facts, outcomes)
    print(text, end="")
    if arguments.json:
        Path(arguments.json).write_text(as_json(facts, outcomes), encoding="utf-8")
    return int(any(outcome.failed for outcome in outcomes))


def unless_cut_off(main: Callable[[], int]) -> int:
    """The status of a command; 141 where nobody reads its output to the end (`| head`), as programs in C end."""
    try:
        status = main()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left would fail again at the end
        return 141


if __name__ == "__main__":
    raise SystemExit(unless_cut_off(main))
