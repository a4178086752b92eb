"""What a row is: how it is prepared, what it is measured in, what it must reach; and what came out of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Goal", "Outcome", "Prepared", "Row", "Setup", "WrongResult"]

Sampler = Callable[[], float]


class WrongResult(Exception):
    """A peer's result is not that of the reference: its time means nothing."""


@dataclass(frozen=True)
class Setup:
    """How a run is done. `tiny`: sizes for the tests, where nothing is timed."""

    peers: tuple[str, ...] = ("kernmill", "numpy", "torch", "torch.compile", "jax", "onnxruntime", "tinygrad")
    threads: int = 1
    rounds: int = 11
    sample_s: float = 0.02
    row_s: float = 4.0  # of sampling, after which a row ends early
    tiny: bool = False


@dataclass(frozen=True)
class Goal:
    """To reach: `ratio` times as fast as `peer`, or less than `limit` (in the row's quantity, less the baseline).

    The peer "best" is the fastest of those that were measured; "ceiling" is what the machine can do at most: a ratio of
    0.8 is 80 % of it. Shown, never asserted: a machine's bad day is no fault of the code.
    """

    peer: str = ""
    ratio: float = 0.0
    limit: float = 0.0


@dataclass
class Prepared:
    """A row ready to be sampled: every result was compared with the reference before.

    A sampler measures once and returns the quantity of one unit of work (seconds; bytes for memory rows).
    """

    samplers: Mapping[str, Sampler]
    work: float = 0.0  # flops or bytes of one call, in the row's `rate`
    notes: Callable[[], list[str]] = list  # asked after the samples were taken
    measured: Callable[[Mapping[str, list[float]]], float] | None = None  # for a limit, else the median
    close: Callable[[], None] | None = None  # called when the samples were taken, or failed


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    about: str
    prepare: Callable[[Setup], Prepared]
    rate: str = ""  # GFLOP/s or GB/s, or empty
    quantity: str = "s"  # s or B
    goals: tuple[Goal, ...] = ()
    goal_threads: tuple[int, ...] = (1, 2)  # the goals are about these numbers of threads
    only_threads: int = 0  # measured with this number only
    once: bool = False  # the same for any number of threads: measured in the first run only
    baseline: str = ""  # this peer's sample is taken off those of its round (bare Python, for imports)
    most_rounds: int = 1000


@dataclass
class Outcome:
    """What was measured, as it is kept in JSON."""

    name: str
    about: str
    threads: int
    rate: str = ""
    quantity: str = "s"
    work: float = 0.0
    samples: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    notes: list[str] = field(default_factory=list[str])
    failed: str = ""
    goals: list[list[str]] = field(default_factory=list[list[str]])  # what is to be reached, and whether it was


def take_off(samples: Mapping[str, Sequence[float]], baseline: str) -> dict[str, list[float]]:
    """Every peer's samples less the baseline's of the same round."""
    base = samples[baseline]
    return {
        peer: [one - zero for one, zero in zip(values, base[: len(values)], strict=True)]
        for peer, values in samples.items()
        if peer != baseline
    }
