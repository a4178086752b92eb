"""`python -m bench.sizes`: tensor programs of random sizes, in turn with torch eager: where is a rule of thumb far off?

The rows of the table are sizes that people measure; users have others. What it prints are the worst ratios, so that
the next look goes there, and their geometric mean. Results are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

from .figures import digits, show_seconds
from .machine import machine, machine_line
from .table import as_row
from .timing import call_sampler, interleave

__all__ = ["FAMILIES", "Line", "lines_of", "main", "markdown"]

_MOST_WORK = 3e8  # multiply-adds, or the square of elements: a line takes milliseconds
_ROUNDS = 7
_SAMPLE_S = 0.002

Program = tuple[Callable[..., Any], Callable[..., Any]]  # on tensors of kernmill's, and of torch's


@dataclass(frozen=True)
class Line:
    """One program; times in seconds, the least of the rounds."""

    what: str
    kernmill_s: float
    torch_s: float
    is_right: bool

    @property
    def ratio(self) -> float:
        """How much faster kernmill is."""
        return self.torch_s / self.kernmill_s


def _products(rng: random.Random) -> tuple[str, list[tuple[int, ...]], Program]:
    rows, columns, terms = (rng.choice([1, 2, 3, 5, 8, 9, 12, 17, 24, 33, 48, 64, 100, 250]),
                            rng.choice([7, 16, 30, 64, 100, 128, 500, 1000, 3000]),
                            rng.choice([3, 5, 16, 33, 64, 128, 300, 784, 1024, 4096]))  # fmt: skip
    batch, is_turned, is_right_turned = (
        rng.choice([1, 1, 8]),
        *rng.choice([(False, False), (False, True), (True, False)]),
    )
    left = (batch, terms, rows) if is_turned else (batch, rows, terms)
    right = (batch, columns, terms) if is_right_turned else (batch, terms, columns)

    def run(a: Any, b: Any) -> Any:
        return (a.transpose(1, 2) if is_turned else a) @ (b.transpose(1, 2) if is_right_turned else b)

    return (
        f"{' x '.join(map(str, left))} {'T ' if is_turned else ''}@ {' x '.join(map(str, right))}"
        + (" T" if is_right_turned else ""),
        [left, right],
        (run, run),
    )


_ROW_PROGRAMS: dict[str, Program] = {
    "sum": (lambda x, axis: x.sum(axis), lambda x, axis: x.sum(axis)),
    "max": (lambda x, axis: x.max(axis), lambda x, axis: x.amax(axis)),
    "softmax": (lambda x, axis: x.softmax(axis), lambda x, axis: x.softmax(axis)),
    "argmax": (lambda x, axis: x.argmax(axis), lambda x, axis: x.argmax(axis)),
    "cumsum": (lambda x, axis: x.cumsum(axis), lambda x, axis: x.cumsum(axis)),
    "logsumexp": (lambda x, axis: x.logsumexp(axis), lambda x, axis: x.logsumexp(axis)),
    "flip and add": (lambda x, axis: x + x.flip(axis), lambda x, axis: x + x.flip(axis)),
    "tanh": (lambda x, axis: x.tanh(), lambda x, axis: x.tanh()),
    "transpose": (lambda x, axis: x.transpose(0, -1) + 1, lambda x, axis: x.transpose(0, -1).contiguous() + 1),
}


def _rows(rng: random.Random) -> tuple[str, list[tuple[int, ...]], Program]:
    name = rng.choice(list(_ROW_PROGRAMS))
    shape = tuple(rng.choice([3, 7, 16, 30, 64, 100, 256, 1000, 4096]) for _ in range(rng.choice([2, 3])))
    axis = rng.randrange(len(shape))
    ours, theirs = _ROW_PROGRAMS[name]
    return (
        f"{name} of {' x '.join(map(str, shape))} over axis {axis}",
        [shape],
        (
            lambda x: ours(x, axis),
            lambda x: theirs(x, axis),
        ),
    )


FAMILIES = {"products": _products, "rows": _rows}


def lines_of(family: str, seed: int, seconds: float) -> Iterator[Line]:
    """Random programs of a family, one after the other, until the time is over; at least one."""
    import numpy as np
    import torch

    from kernmill import Tensor, jit

    rng, values, end = random.Random(seed), np.random.default_rng(seed), time.monotonic() + seconds
    while True:
        what, shapes, (ours, theirs) = FAMILIES[family](rng)
        work = math.prod(shapes[0]) * (shapes[1][-1] if len(shapes) > 1 else 30)
        if work > _MOST_WORK:
            continue
        arrays = [values.standard_normal(shape).astype(np.float32) for shape in shapes]
        mine, other, fast = [Tensor(a) for a in arrays], [torch.from_numpy(a) for a in arrays], jit(ours)
        for _ in range(3):
            result = fast(*mine)
        is_right = np.allclose(result.numpy(), theirs(*other).numpy(), rtol=1e-3, atol=1e-3 * math.sqrt(work))
        samplers = {"kernmill": call_sampler(lambda: fast(*mine), _SAMPLE_S, 1),  # noqa: B023 - timed before the next
                    "torch": call_sampler(lambda: theirs(*other), _SAMPLE_S, 1)}  # fmt: skip # noqa: B023
        times = interleave(samplers, _ROUNDS)
        yield Line(what, min(times["kernmill"]), min(times["torch"]), is_right)
        if time.monotonic() > end:
            return


def markdown(facts: dict[str, Any], lines: Sequence[Line], most: int) -> str:
    """The machine, the mean, and the lines where kernmill is slowest."""
    text = [f"{machine_line(facts)}, one thread.", "",
            f"{len(lines)} programs; x: torch's time by kernmill's, the least of {_ROUNDS} rounds each. "
            f"Geometric mean: {digits(geometric_mean([line.ratio for line in lines]))}.", "",
            as_row(["program", "kernmill", "torch", "x"]), as_row(["---", "--:", "--:", "--:"])]  # fmt: skip
    for line in sorted(lines, key=lambda one: (one.is_right, one.ratio))[:most]:
        shown = digits(line.ratio) if line.is_right else "WRONG"
        text.append(as_row([line.what, show_seconds(line.kernmill_s), show_seconds(line.torch_s), shown]))
    return "\n".join(text) + "\n"


def main(given: Sequence[str] | None = None) -> int:
    """1 when a result was wrong, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.sizes", description=__doc__)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"of {', '.join(FAMILIES)}; default: all")
    parser.add_argument("--seconds", type=float, default=60, help="for each family (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the same programs again (default %(default)s)")
    parser.add_argument("--most", type=int, default=20, help="lines that are shown (default %(default)s)")
    arguments = parser.parse_args(given)
    unknown = [name for name in arguments.families if name not in FAMILIES]
    if unknown:
        parser.error(f"no family {unknown[0]}; there are: {', '.join(FAMILIES)}")
    os.environ |= {"THREADS": "1", "OMP_NUM_THREADS": "1"}
    lines = [
        line for name in arguments.families or FAMILIES for line in lines_of(name, arguments.seed, arguments.seconds)
    ]
    print(markdown(machine(), lines, arguments.most))
    return 1 if any(not line.is_right for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
