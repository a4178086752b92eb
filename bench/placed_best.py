"""Small graphs: the time of the placement that is chosen against the best one, found by measuring all of them.

    python -m bench.placed_best                      # over LLVM and CL, inputs on both
    python -m bench.placed_best --device LLVM,CL,FAR
    THREADS=1 python -m bench.placed_best --clock cpu    # where other programs run

Every placement of a graph's units is planned, and its kernels and copies are measured on other buffers, as `kernmill
explain` does it. The chosen one and the best one are then measured again in turns. The aim: at most 10 % apart.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from kernmill import Context, Tensor
from kernmill.ir import DeviceTable, GraphPlan
from kernmill.runtime import device, get_device, placement_report

from .placed_graphs import GRAPHS, HELD_OUT, cpu_clock

__all__ = ["Best", "best_of", "main"]

_SMALL = (
    "matmul_128", "matvec_1024", "softmax", "transpose", "mlp", "mlp_deep", "attention", "block", "block_token", "loss",
    "gradient", "two_layers",
)  # fmt: skip
_MOST = 250  # placements of a graph
_TURNS = 5


class Best(NamedTuple):
    """Nanoseconds of the chosen and of the best placement of a graph, and how many there are."""

    graph: str
    placements: int
    chosen_ns: float
    best_ns: float
    names: str  # the devices of the best one, by unit

    @property
    def ratio(self) -> float:
        """How much longer the chosen one takes: 1.0 is the best."""
        return self.chosen_ns / self.best_ns


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each graph, and how many are within 10 %."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("graphs", nargs="*", default=_SMALL)
    parser.add_argument("--device", default="LLVM,CL", help="the devices, with commas")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    given = parser.parse_args(arguments)
    known = device.device_names()
    device.device_names = lambda: {**known, "FAR": "tests.far_device:FarDevice"}
    names = [get_device(f"{name}?mib=512" if name == "FAR" else name).name for name in given.device.split(",")]
    with cpu_clock() if given.clock == "cpu" else nullcontext():
        found = [best for graph in given.graphs if (best := best_of(graph, names)) is not None]
    print(f"{sum(one.ratio <= 1.1 for one in found)} of {len(found)} within 10 % of the best")


def best_of(graph: str, names: Sequence[str]) -> Best | None:
    """Measure all placements of a graph whose inputs are on these devices in turn; None: there are too many."""
    function, shapes = (GRAPHS | HELD_OUT)[graph]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    with Context(DEVICE=",".join(names), CACHE="0"):
        given = [Tensor(a, device=names[n % len(names)]).realize() for n, a in enumerate(arrays)]
        stage = importlib.import_module("kernmill.compiler.graph.place")  # whose choice is replaced
        plan, options, table, again = _planned(stage, lambda: function(*given))
        placements = list(itertools.product(*options))
        if len(placements) > _MOST:
            print(f"{graph:12} {len(placements)} placements: left out")
            return None
        times: dict[tuple[str, ...], tuple[float, GraphPlan]] = {}
        for devices in placements:
            with _replaced(
                stage, "choose_devices", lambda choice, devices=devices: setattr(choice, "device", list(devices))
            ):
                other = again()
            times[devices] = _time_ns(other, table), other
    least = min(times, key=lambda devices: times[devices][0])
    turns = [(_time_ns(plan, table), _time_ns(times[least][1], table)) for _ in range(_TURNS)]
    chosen, best = (statistics.median(column) for column in zip(*turns, strict=True))
    units = ",".join(name for name, option in zip(least, options, strict=True) if len(option) > 1)
    found = Best(graph, len(placements), chosen, min(best, chosen), units)
    print(f"{graph:12} {len(placements):4} placements  chosen {chosen / 1e3:8.1f} us  best {best / 1e3:8.1f} us"
          f"  {found.ratio:5.2f}  {units}", flush=True)  # fmt: skip
    return found


def _planned(
    stage: Any, call: Callable[[], Tensor]
) -> tuple[GraphPlan, list[list[str]], DeviceTable, Callable[[], GraphPlan]]:
    """The plan of a call, the devices that each of its units may have, and a function that plans it again."""
    options, calls, choose = list[list[str]](), list[tuple[Any, ...]](), stage.choose_devices
    planning = importlib.import_module("kernmill.runtime.plans.planning")
    planned = planning.planned

    def noted_choice(choice: Any) -> None:
        options[:] = [list(costs) for costs in choice.cost]
        choose(choice)

    def noted_plan(*given: Any) -> Any:
        calls.append(given)
        return planned(*given)

    with _replaced(stage, "choose_devices", noted_choice), _replaced(planning, "planned", noted_plan):
        call().realize()
    return planned(*calls[-1])[0], options, calls[-1][4], lambda: planned(*calls[-1])[0]


@contextmanager
def _replaced(module: Any, name: str, value: object) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def _time_ns(plan: GraphPlan, table: DeviceTable) -> float:
    """Kernels and copies of a plan."""
    return sum(placement_report.measure(plan, placement_report.splits_of(plan, table)))


if __name__ == "__main__":
    main()
