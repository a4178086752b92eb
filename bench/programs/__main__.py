"""`python -m bench.programs`: programs against torch, torch.compile and an old checkout, each in its own process."""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..__main__ import unless_cut_off
from ..figures import digits, ratios_to, show_bytes, show_seconds, spread
from ..fresh_rows import cache_environment
from ..machine import machine, machine_line
from ..peers import installed, thread_environment
from ..timing import interleave
from .program import Program
from .suite import PROGRAMS

__all__ = ["Worker", "agree", "main", "markdown", "measured"]

ROOT = Path(__file__).resolve().parent.parent.parent
MODES = ("cold", "warm", "captured", "eager")
Found = dict[str, Any]


class Worker:
    """A worker process; a sampler once it has reported its first calls."""

    def __init__(self, program: str, peer: str, mode: str, options: argparse.Namespace, cache: str) -> None:
        folder = options.against if peer == "old" else ""
        given = {"name": program, "library": "kernmill" if peer == "old" else peer, "mode": mode, "folder": folder,
                 "threads": options.threads, "clock": options.clock, "is_tiny": options.tiny}  # fmt: skip
        environment = thread_environment(options.threads) | cache_environment(f"{cache}/{peer}")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.programs.worker", json.dumps(given)],
            env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            self.facts: Found = json.loads(self.line())
        except Exception:
            self.close()
            raise

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            raise RuntimeError((self.process.stderr.read().strip().splitlines() or ["the process ended"])[-1])
        return line

    def __call__(self) -> float:
        """A sample: seconds of one call."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.line())

    def close(self) -> None:
        """Ends the process: it has no more lines to read."""
        try:
            self.process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()


def agree(program: Program, ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> bool:
    """True if the values of the first calls are equal within the program's tolerance."""
    pairs = list(zip(ours, theirs, strict=True))
    return all(
        len(a) == len(b) and np.allclose(a, b, rtol=program.rtol, atol=program.rtol * float(np.abs(b).max(initial=0)))
        for a, b in pairs
    )


def measured(program: Program, options: argparse.Namespace, cache: str) -> Found:
    """All modes of a program; a peer that fails or has other values is left out with a note."""
    found: Found = {"name": program.name, "about": program.about, "seconds": {}, "peak": {}, "compiled": 0, "notes": []}
    modes = [mode for mode in MODES if mode in program.modes and mode in options.modes]
    peers = ["kernmill", *(p for p in options.peers if p in program.peers)]
    right: list[list[float]] = []
    for mode in modes:
        workers: dict[str, Worker] = {}
        try:
            for peer in peers:
                if mode == "eager" and peer == "torch.compile":
                    continue
                try:
                    worker = Worker(program.name, peer, mode, options, cache)
                except Exception as error:
                    found["notes"].append(f"{mode}: {peer} failed: {str(error)[:160]}")
                    continue
                workers[peer] = worker
                right = right or worker.facts["values"]
                if not agree(program, worker.facts["values"], right):
                    found["notes"].append(f"{mode}: {peer} has other values")
                    workers.pop(peer).close()
                    continue
                note_first(found, mode, peer, worker.facts)
                if mode in ("cold", "warm"):
                    worker.close()
            if mode in ("captured", "eager"):
                found["seconds"][mode] = interleave(workers, options.rounds, most_s=options.row_s)
        finally:
            for worker in workers.values():
                worker.close()
    return found


def note_first(found: Found, mode: str, peer: str, facts: Mapping[str, Any]) -> None:
    """The first calls and memory of a worker."""
    if mode in ("cold", "warm"):
        found["seconds"].setdefault(mode, {})[peer] = [sum(facts["first_s"])]
    if mode in ("warm", "captured"):
        found["peak"][peer] = facts["peak"]
    if mode == "cold" and peer == "kernmill":
        found["compiled"] = facts["compiled"]


def cell(ours: Sequence[float], theirs: Mapping[str, Sequence[float]]) -> str:
    parts = [show_seconds(spread(ours).median)]
    for peer, values in theirs.items():
        ratio = ratios_to(values, ours)
        apart = f" ({digits(ratio.low)}-{digits(ratio.high)})" if len(values) > 1 else ""
        parts.append(f"{peer} **{digits(ratio.median)}**{apart}")
    return ", ".join(parts)


def ratio_of(found: Found, mode: str, peer: str) -> float:
    """The peer's time, or peak memory, by kernmill's; nan where one was not measured."""
    if mode == "memory":
        return found["peak"].get(peer, math.nan) / found["peak"].get("kernmill", math.nan)
    samples = found["seconds"].get(mode, {})
    ours = samples.get("kernmill")
    names = [name for name in ("torch", "torch.compile") if samples.get(name)] if peer == "best" else [peer]
    return min((ratios_to(samples[n], ours).median for n in names if ours and samples.get(n)), default=math.nan)


def judged(found: Found) -> str:
    """Each goal that was measured, and whether it is reached."""
    texts = []
    for mode, (peer, least) in PROGRAMS[found["name"]].goals.items():
        ratio = ratio_of(found, mode, peer)
        if not math.isnan(ratio):
            texts.append(f"{mode} {least:.3g}x {peer}: {'met' if ratio >= least else 'not met'} ({ratio:.3g})")
    return "; ".join(texts)


def markdown(facts: Mapping[str, Any], rows: Sequence[Found]) -> str:
    """The table, the geometric mean of the captured ratios, and notes."""
    lines = [f"{machine_line(facts['machine'])}; {facts['when']}, commit {facts['commit']}, "
             f"{facts['threads']} thread(s), {facts['clock']} clock.", ""]  # fmt: skip
    lines += ["Medians and, in bold, the peer's time by kernmill's: above 1 kernmill is faster. cold, warm: the first "
              "three calls (one of eager programs) without and with a filled cache.", ""]  # fmt: skip
    lines += [f"| program | {' | '.join(MODES)} | peak memory | compiled | goals |", "| --- " * 8 + "|"]
    for row in rows:
        cells = []
        for mode in MODES:
            samples = dict(row["seconds"].get(mode, {}))
            ours = samples.pop("kernmill", None)
            cells.append(cell(ours, {k: v for k, v in samples.items() if v}) if ours else "")
        peaks = ", ".join(f"{peer} {show_bytes(peak)}" for peer, peak in row["peak"].items())
        lines.append(f"| {row['name']} | {' | '.join(cells)} | {peaks} | {row['compiled']} | {judged(row)} |")
    small = [r for row in rows if "captured" in PROGRAMS[row["name"]].goals
             if not math.isnan(r := ratio_of(row, "captured", "torch"))]  # fmt: skip
    if small:
        lines += [
            "",
            f"Captured, geometric mean against torch: {math.exp(sum(map(math.log, small)) / len(small)):.2f}x.",
        ]
    notes = [f"* **{row['name']}** ({row['about']}): {note}" for row in rows for note in row["notes"]]
    return "\n".join([*lines, "", *notes]) + "\n"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench.programs", description=__doc__)
    made.add_argument("--rows", default="*", metavar="PATTERNS", help="names or patterns, with commas: gpt*,vae")
    made.add_argument("--modes", default=",".join(MODES), help="of %(default)s")
    made.add_argument("--peers", default="torch,torch.compile", help="of %(default)s")
    made.add_argument("--against", default="", metavar="FOLDER", help="an old checkout of kernmill, as the peer `old`")
    made.add_argument("--threads", type=int, default=1)
    made.add_argument("--rounds", type=int, default=7)
    made.add_argument("--row-s", type=float, default=8.0, metavar="SECONDS", help="of sampling, after five rounds")
    made.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: for busy machines, one thread")
    made.add_argument("--tiny", action="store_true", help="tiny sizes: a test")
    made.add_argument("--json", metavar="FILE")
    made.add_argument("--show", nargs="+", metavar="FILE", help="nothing is run: the table of what --json kept")
    made.add_argument("--list", action="store_true")
    return made


def chosen(patterns: str) -> list[Program]:
    """The programs that the patterns name. Raises SystemExit for a pattern that names none."""
    for pattern in patterns.split(","):
        if not fnmatch.filter(PROGRAMS, pattern):
            raise SystemExit(f"bench.programs: no program is named {pattern!r}. Programs: {', '.join(PROGRAMS)}.")
    return [one for one in PROGRAMS.values() if any(fnmatch.fnmatch(one.name, p) for p in patterns.split(","))]


def main(given: Sequence[str] | None = None) -> int:
    """1 when kernmill failed in a program, else 0."""
    options = parser().parse_args(given)
    programs = chosen(options.rows)
    if options.list:
        print("\n".join(f"{one.name:14} {one.about}" for one in programs))
        return 0
    if options.show:
        kept = [json.loads(Path(file).read_text()) for file in options.show]
        rows = {row["name"]: row for one in kept for row in one["rows"]}
        print(markdown(kept[0]["facts"], list(rows.values())), end="")
        return 0
    options.modes, options.peers = options.modes.split(","), [p for p in options.peers.split(",") if p and installed(p)]
    options.peers += ["old"] if options.against else []
    here = machine()
    facts = {"machine": here, "when": here["when"], "commit": here["commit"]}
    facts.update({"threads": options.threads, "clock": options.clock})
    found = []
    for program in programs:
        with tempfile.TemporaryDirectory(prefix="kernmill-programs-") as cache:
            if "cold" not in options.modes:
                Worker(program.name, "kernmill", "captured", options, cache).close()  # fills the cache
            found.append(measured(program, options, cache))
        print(f"{program.name:14} {judged(found[-1])} {'; '.join(found[-1]['notes'])}", file=sys.stderr, flush=True)
        if options.json:
            Path(options.json).write_text(
                json.dumps({"facts": facts, "rows": [small(row) for row in found]}) + os.linesep
            )
    print(markdown(facts, found), end="")
    return int(any("kernmill" in note for row in found for note in row["notes"]))


def small(row: Found) -> Found:
    """A row with figures of four digits."""
    seconds = {mode: {peer: [float(f"{s:.4g}") for s in samples] for peer, samples in peers.items()}
               for mode, peers in row["seconds"].items()}  # fmt: skip
    return {**row, "seconds": seconds}


if __name__ == "__main__":
    raise SystemExit(unless_cut_off(main))
