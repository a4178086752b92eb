"""One run of rows with one number of threads: prepare, sample, judge the goals. A row that fails stops no other."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence

from .figures import digits, ratios, show_bytes, show_seconds, spread
from .fresh_rows import FRESH_ROWS
from .launch import LAUNCH_ROWS
from .peers import peer
from .row import Goal, Outcome, Prepared, Row, Setup, take_off
from .tensor_rows import TENSOR_ROWS
from .timing import interleave
from .train_rows import TRAIN_ROWS

__all__ = ["ROWS", "measure_all", "measure_row"]

ROWS: list[Row] = [*TENSOR_ROWS, *LAUNCH_ROWS, *TRAIN_ROWS, *FRESH_ROWS]


def measure_all(rows: Sequence[Row], setup: Setup) -> list[Outcome]:
    """Every row, with a line on stderr for each."""
    for name in setup.peers:
        peer(name).use_threads(setup.threads)
    outcomes = []
    for row in rows:
        outcome = measure_row(row, setup)
        outcomes.append(outcome)
        print(f"{row.name:16} {setup.threads}T  {in_short(outcome)}", file=sys.stderr, flush=True)
        gc.collect()
    return outcomes


def measure_row(row: Row, setup: Setup) -> Outcome:
    """One row. Whatever goes wrong in it becomes its text: nothing of it is timed then."""
    outcome = Outcome(row.name, row.about, setup.threads, row.rate, row.quantity)
    try:
        prepared = row.prepare(setup)
        samples = interleave(prepared.samplers, min(setup.rounds, row.most_rounds))
        outcome.samples = take_off(samples, row.baseline) if row.baseline in samples else samples
        outcome.work = prepared.work
        outcome.notes = prepared.notes()
        outcome.goal = goal_text(row, setup.threads, prepared, outcome.samples)
    except Exception as error:  # the other rows can still be measured
        outcome.samples = {}
        outcome.failed = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return outcome


def goal_text(row: Row, threads: int, prepared: Prepared, samples: Mapping[str, list[float]]) -> str:
    """Each goal, and whether it was reached."""
    if threads != row.goal_threads and not row.once:
        return ""
    return "; ".join(text for goal in row.goals if (text := judged(goal, row, prepared, samples)))


def judged(goal: Goal, row: Row, prepared: Prepared, samples: Mapping[str, list[float]]) -> str:
    """One goal; nothing where a side of it was not measured."""
    ours = samples.get("kernmill")
    if not ours or (goal.peer and goal.peer not in samples):
        return ""
    if goal.peer:
        found = ratios(samples[goal.peer], ours).median
        return f"{goal.ratio:g}x {goal.peer}: {'reached' if found >= goal.ratio else 'short'} ({digits(found)})"
    show = show_bytes if row.quantity == "B" else show_seconds
    found = prepared.measured(samples) if prepared.measured else spread(ours).median
    return f"under {show(goal.limit)}: {'reached' if found < goal.limit else 'short'} ({show(found)})"


def in_short(outcome: Outcome) -> str:
    """The outcome in a line."""
    if outcome.failed:
        return f"FAILED {outcome.failed}"
    show = show_bytes if outcome.quantity == "B" else show_seconds
    parts = [f"{name} {show(spread(values).median)}" for name, values in outcome.samples.items()]
    return "  ".join([*parts, *([f"[{outcome.goal}]"] if outcome.goal else [])])
