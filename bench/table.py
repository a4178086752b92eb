"""The Markdown table of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .figures import digits, ratios_to, show_bytes, show_ratio, show_seconds, spread
from .machine import machine_line
from .row import Outcome

__all__ = ["as_row", "markdown"]


def markdown(facts: dict[str, Any], outcomes: Sequence[Outcome]) -> str:
    """The machine, the table, what each row is, and what failed."""
    others = list(dict.fromkeys(p for o in outcomes for p in o.samples if p != "kernmill"))
    others.sort(key=lambda name: name == "ceiling")  # last
    heads = ["row", "threads", "kernmill", "rate", *(f"{name}: time, x" for name in others), "goal", "met"]
    lines = [f"{machine_line(facts)}.", ""]
    lines += [f"Medians of {facts['rounds']} interleaved rounds, the middle half in brackets. "
              "x: the peer's time by kernmill's, round by round; above 1 kernmill is faster.", ""]  # fmt: skip
    if facts.get("runs", 1) > 1:
        lines += [f"Put together from {facts['runs']} runs; the peers of a row always share one.", ""]
    if facts.get("missing"):
        absent = "; ".join(f"{name} ({what})" for name, what in facts["missing"].items())
        lines += [f"Left out, because something is not installed: {absent}.", ""]
    lines += [] if facts["jit"] else ["**kernmill without jit**: every call builds its graph anew.", ""]
    lines += [as_row(heads), as_row(["---", *["--:"] * (len(heads) - 3), "---", "---"])]
    lines += [as_row(cells(outcome, others)) for outcome in outcomes if not outcome.failed]
    lines += ["", *about(outcomes)]
    failed = [f"* **{o.name}**, {threads_text(o.threads)}: {o.failed}" for o in outcomes if o.failed]
    return "\n".join([*lines, *(["", "Failed, hence not timed:", "", *failed] if failed else [])]) + "\n"


def about(outcomes: Sequence[Outcome]) -> list[str]:
    """A line for each row: its work, and what was noted at any number of threads."""
    lines: dict[str, str] = {}
    for outcome in outcomes:
        lines.setdefault(outcome.name, f"* `{outcome.name}`: {outcome.about}.")
        if outcome.notes:
            lines[outcome.name] += f" {threads_text(outcome.threads).capitalize()}: {'; '.join(outcome.notes)}."
    return list(lines.values())


def threads_text(threads: int) -> str:
    return f"{threads} thread{'s' if threads != 1 else ''}"


def as_row(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def show(value: float, quantity: str) -> str:
    return show_bytes(value) if quantity == "B" else show_seconds(value)


def cells(outcome: Outcome, others: Sequence[str]) -> list[str]:
    """One line of the table."""
    ours = outcome.samples.get("kernmill", [])
    row = [outcome.name, str(outcome.threads), "", ""]
    if ours:
        found = spread(ours)
        low, high = show(found.low, outcome.quantity), show(found.high, outcome.quantity)
        row[2] = f"{show(found.median, outcome.quantity)} ({low}-{high})"
        row[3] = f"{digits(outcome.work / found.median / 1e9)} {outcome.rate}" if outcome.rate else ""
    for name in others:
        theirs = outcome.samples.get(name)
        if not theirs:
            row.append("")
            continue
        text = show(spread(theirs).median, outcome.quantity)
        row.append(f"{text}, {show_ratio(ratios_to(theirs, ours))}" if ours else text)
    return [*row, "; ".join(what for what, _ in outcome.goals), "; ".join(found for _, found in outcome.goals)]
