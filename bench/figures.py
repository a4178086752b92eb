"""Numbers: quartiles, ratios per round, and how they are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Spread", "ratios", "ratios_to", "show_ratio", "show_seconds", "spread"]


@dataclass(frozen=True)
class Spread:
    """The middle half of some samples."""

    median: float
    low: float  # 25 %
    high: float  # 75 %


def quantile(ordered: Sequence[float], part: float) -> float:
    """Linear interpolation between the neighbours, as numpy.quantile does by default."""
    place = part * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def spread(samples: Sequence[float]) -> Spread:
    """Median and quartiles. Raises ValueError without samples."""
    if not samples:
        raise ValueError("spread: no samples")
    ordered = sorted(samples)
    return Spread(quantile(ordered, 0.5), quantile(ordered, 0.25), quantile(ordered, 0.75))


def ratios(peer: Sequence[float], ours: Sequence[float]) -> Spread:
    """Peer's time by our time, round by round: above 1 we are faster. What slowed a whole round cancels out."""
    return spread([theirs / mine for theirs, mine in zip(peer, ours, strict=True)])


def ratios_to(peer: Sequence[float], ours: Sequence[float]) -> Spread:
    """`ratios` where one side took part in the first rounds only."""
    rounds = min(len(peer), len(ours))
    return ratios(peer[:rounds], ours[:rounds])


def show_seconds(seconds: float) -> str:
    """Three digits and a unit: 1.23 ms."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= scale:
            return f"{digits(seconds / scale)} {unit}"
    return f"{digits(seconds / 1e-9)} ns"


def show_bytes(count: float) -> str:
    """1.23 MB: powers of 10."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= scale:
            return f"{digits(count / scale)} {unit}"
    return f"{count:.0f} B"


def digits(value: float) -> str:
    """Three significant digits without an exponent."""
    size = abs(value)
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def show_ratio(ratio: Spread) -> str:
    """The median, and the quartiles where they say something else."""
    middle, low, high = digits(ratio.median), digits(ratio.low), digits(ratio.high)
    return f"**{middle}**" if low == high else f"**{middle}** ({low}-{high})"
