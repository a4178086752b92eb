"""One run of rows with one number of threads: prepare, sample, judge the goals. A row that fails stops no other."""

from __future__ import annotations

import gc
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from .attention_rows import ATTENTION_ROWS
from .block_rows import BLOCK_ROWS
from .conv_rows import CONV_ROWS
from .device_pipeline import DEVICE_ROWS
from .figures import digits, ratios_to, show_bytes, show_seconds, spread
from .fresh_rows import FRESH_ROWS
from .hog_rows import HOG_ROWS
from .launch import LAUNCH_ROWS
from .matmul_rows import MATMUL_ROWS
from .peers import peer
from .quant_rows import QUANT_ROWS
from .row import Goal, Outcome, Prepared, Row, Setup, take_off
from .tensor_rows import TENSOR_ROWS
from .timing import interleave
from .train_rows import TRAIN_ROWS

_NO_PEERS = ("kernmill", "opencl", "ceiling")  # us, and what is nobody's

__all__ = ["EXPRESSION_ROWS", "ROWS", "measure_all", "measure_row"]

EXPRESSION_ROWS: list[Row] = [*MATMUL_ROWS, *ATTENTION_ROWS, *CONV_ROWS, *TENSOR_ROWS, *QUANT_ROWS]
ROWS: list[Row] = [
    *EXPRESSION_ROWS, *LAUNCH_ROWS, *TRAIN_ROWS, *HOG_ROWS, *FRESH_ROWS,
    *BLOCK_ROWS, *DEVICE_ROWS,
]  # fmt: skip


def measure_all(
    rows: Sequence[Row], setup: Setup, limit_s: float = math.inf, keep: Callable[[list[Outcome]], None] | None = None
) -> list[Outcome]:
    """Every row, with a line on stderr for each; none is begun after so many seconds. `keep` gets those so far."""
    deadline = time.monotonic() + limit_s
    for name in setup.peers:
        peer(name).use_threads(setup.threads)
    outcomes = []
    for row in rows:
        if time.monotonic() < deadline:
            outcome = measure_row(row, setup)
        else:
            outcome = Outcome(row.name, row.about, setup.threads, failed=f"not begun within {limit_s:g} s")
        outcomes.append(outcome)
        if keep:
            keep(outcomes)
        print(f"{row.name:22} {setup.threads}T  {in_short(outcome)}", file=sys.stderr, flush=True)
        gc.collect()
    return outcomes


def measure_row(row: Row, setup: Setup) -> Outcome:
    """One row. Whatever goes wrong in it becomes its text: nothing of it is timed then."""
    outcome = Outcome(row.name, row.about, setup.threads, row.rate, row.quantity)
    prepared = None
    try:
        prepared = row.prepare(setup)
        samples = interleave(prepared.samplers, min(setup.rounds, row.most_rounds), most_s=setup.row_s)
        outcome.samples = take_off(samples, row.baseline) if row.baseline in samples else samples
        outcome.work = prepared.work
        outcome.notes = prepared.notes()
        outcome.goals = judged_goals(row, setup.threads, prepared, outcome.samples)
    except Exception as error:  # the other rows can still be measured
        outcome.samples = {}
        outcome.failed = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    finally:
        if prepared and prepared.close:
            prepared.close()
    return outcome


def judged_goals(row: Row, threads: int, prepared: Prepared, samples: Mapping[str, list[float]]) -> list[list[str]]:
    """Each goal that could be judged, and whether it was met."""
    if threads not in row.goal_threads and not row.once:
        return []
    return [found for goal in row.goals if (found := judged(goal, row, prepared, samples))]


def judged(goal: Goal, row: Row, prepared: Prepared, samples: Mapping[str, list[float]]) -> list[str]:
    """One goal; nothing where a side of it was not measured."""
    ours = samples.get("kernmill")
    name = goal.peer
    others = {peer: values for peer, values in samples.items() if peer not in _NO_PEERS and values}
    if not ours or (name and not others if name == "best" else name and not samples.get(name)):
        return []
    if name:
        if name == "best":
            name = min(others, key=lambda peer: ratios_to(others[peer], ours).median)
        found = ratios_to(samples[name], ours).median
        shown = f"{goal.ratio:.0%} of the ceiling" if name == "ceiling" else f"{goal.ratio:g}x {goal.peer}"
        who = f", {name}" if goal.peer == "best" else ""
        missing = f"short by {100 * (1 - found / goal.ratio):.2g}%"
        return [shown, f"{'met' if found >= goal.ratio else missing} ({digits(found)}{who})"]
    show = show_bytes if row.quantity == "B" else show_seconds
    found = prepared.measured(samples) if prepared.measured else spread(ours).median
    missing = f"short: {digits(found / goal.limit)}x as long"
    return [f"under {show(goal.limit)}", f"{'met' if found < goal.limit else missing} ({show(found)})"]


def in_short(outcome: Outcome) -> str:
    """The outcome in a line."""
    if outcome.failed:
        return f"FAILED {outcome.failed}"
    show = show_bytes if outcome.quantity == "B" else show_seconds
    parts = [f"{name} {show(spread(values).median)}" for name, values in outcome.samples.items() if values]
    return "  ".join([*parts, *(f"[{what}: {found}]" for what, found in outcome.goals)])
