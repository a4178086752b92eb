"""How well the estimate ranks candidates, and a fit of a machine's row to their times.

A kernel counts if at least eight of its candidates were measured. Families of kernels (the first word of a row's name)
are left out of a fit together: five times a fifth of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from .files import Measured

__all__ = ["Ranked", "Ranking", "fitted", "left_out", "rank", "read_works", "summary"]

_LEAST = 8  # candidates
_FACTORS = (0.5, 0.7, 0.85, 1.2, 1.4, 2.0)
_FARTHEST = 3.0  # of a figure from that of the row
_FIXED = ("clock_ghz", "matrix", "units")
_FOLDS = 5

Costs = Callable[[Any], Sequence[float]]


@dataclass(frozen=True)
class Ranking:
    """The candidates of one kernel: what they do, as read off the lowered kernel or off its loops, and their times in
    nanoseconds."""

    kernel: str
    works: list[Any]
    times: list[float]


@dataclass(frozen=True)
class Ranked:
    """One kernel: rank correlation; the best of the estimate's first 1, 3 and 5 by the best of all; the error of the
    time as a factor; and measurements until a candidate within 2 % of the best is found, as a share."""

    kernel: str
    correlation: float
    first: tuple[float, float, float]
    error: float
    needed: float


def read_works(
    kernels: Mapping[str, Any], measured: Iterable[Measured], target: Any, *, is_planned: bool = False
) -> list[Ranking]:
    """Read the work of every candidate: lower it, or read it off its loops as TRY and the search do."""
    from kernmill.compiler import lower, optimize_loops, parse_schedule, planned_work, read_work

    found: list[Ranking] = []
    for one in measured:
        ast = kernels[one.kernel].ast
        if len(one.times) >= _LEAST:
            made = [optimize_loops(ast, target, parse_schedule(text)) for text in one.times]
            works = [planned_work(m, target) if is_planned else read_work(lower(m, target, ast), target) for m in made]
            found.append(Ranking(one.kernel, works, [*one.times.values()]))
    return found


def rank(found: Sequence[Ranking], target: Any) -> list[Ranked]:
    """Compare the estimate on a target's machine with the times."""
    from kernmill.compiler import work_cost

    return [_ranked(one, [work_cost(work, target).total_ns for work in one.works]) for one in found]


def _ranked(one: Ranking, costs: Sequence[float]) -> Ranked:
    order, best = np.argsort(costs, kind="stable"), min(one.times)
    times = [one.times[n] for n in order]
    a, b = _ranks(costs), _ranks(one.times)
    correlation = float(np.corrcoef(a, b)[0, 1]) if a.std() and b.std() else 0.0
    first = tuple(min(times[:count]) / best for count in (1, 3, 5))
    error = math.exp(abs(statistics.median(math.log(c / t) for c, t in zip(costs, one.times, strict=True))))
    needed = next(n for n, time in enumerate(times, 1) if time <= 1.02 * best) / len(times)
    return Ranked(one.kernel, correlation, (first[0], first[1], first[2]), error, needed)


def _ranks(values: Sequence[float]) -> Any:
    """Ranks; values that differ by less than a thousandth share theirs."""
    _, places, counts = np.unique(np.round(np.log(values), 3), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]


def summary(found: Sequence[Ranked]) -> str:
    """One line."""
    correlations = [one.correlation for one in found]
    firsts = [statistics.geometric_mean(one.first[n] for one in found) for n in range(3)]
    within = [sum(one.first[n] <= most for one in found) / len(found) for n, most in ((1, 1.07), (2, 1.02))]
    return (
        f"{len(found)} kernels: rank correlation {statistics.mean(correlations):.3f} in the mean, "
        f"{min(correlations):.2f} at least; best of the first 1, 3, 5: {firsts[0]:.2f}, {firsts[1]:.3f}, "
        f"{firsts[2]:.3f}; first 3 within 7 %: {within[0]:.0%}, first 5 within 2 %: {within[1]:.0%}; "
        f"{statistics.mean(one.needed for one in found):.0%} of the candidates measured until one is within 2 %; "
        f"error of the time x{statistics.geometric_mean(one.error for one in found):.2f}"
    )


def _loss(found: Sequence[Ranking], target: Any) -> float:
    lines = rank(found, target)
    least = statistics.mean(min(0.65, one.correlation) for one in lines)
    three = statistics.mean(math.log(one.first[1]) for one in lines)
    error = statistics.mean(math.log(one.error) for one in lines)
    return 0.45 * three + 0.1 * error - statistics.mean(one.correlation for one in lines) - 0.15 * least


def fitted(found: Sequence[Ranking], target: Any, rounds: int) -> Any:
    """Return the target with a row that fits: each figure in turn is multiplied by what makes the loss smaller."""
    row = target.machine
    names = [f.name for f in fields(row) if isinstance(getattr(row, f.name), float) and f.name not in _FIXED]
    names += [f"{level} {name}" for level in range(len(row.levels)) for name in ("bytes_per_cycle", "run_cycles")]
    least = _loss(found, target)
    for _ in range(rounds):
        for name in names:
            for factor in _FACTORS:
                wanted = factor * _figure(target.machine, name)
                if not 1 / _FARTHEST <= wanted / _figure(row, name) <= _FARTHEST:
                    continue
                other = replace(target, machine=_with(target.machine, name, wanted))
                if (loss := _loss(found, other)) < least - 1e-5:
                    least, target = loss, other
    return target


def _figure(row: Any, name: str) -> float:
    level, _, figure = name.rpartition(" ")
    return float(getattr(row.levels[int(level)], figure) if level else getattr(row, name))


def _with(row: Any, name: str, value: float) -> Any:
    level, _, figure = name.rpartition(" ")
    if not level:
        return replace(row, **{name: value})
    levels = list(row.levels)
    levels[int(level)] = levels[int(level)]._replace(**{figure: value})
    return replace(row, levels=tuple(levels))


def left_out(found: Sequence[Ranking], target: Any, rounds: int) -> list[Ranked]:
    """Rank each kernel with a row that was fitted without its family."""
    families = sorted({_family(one.kernel) for one in found})
    lines: list[Ranked] = []
    for fold in range(_FOLDS):
        out = families[fold::_FOLDS]
        row = fitted([one for one in found if _family(one.kernel) not in out], target, rounds)
        lines += rank([one for one in found if _family(one.kernel) in out], row)
    return lines


def _family(kernel: str) -> str:
    return kernel.partition(" ")[0].partition("_")[0]
