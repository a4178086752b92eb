"""The device of each unit: the least predicted time of kernels and copies, in nanoseconds.

The time of a placement is the sum of kernel times on their devices and of copies: one of each value for each other
device that reads it. Where the value is computed, a split begins there, and its launch takes longer. For two devices
the least is found exactly, as a minimum cut. For more, each unit begins on its cheapest device, and pairs are
cut in turn until nothing gains, in two orders. Tests: tests/compiler/graph/test_place.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from kernmill.ir import DeviceTable, DType, KernelWork, Op, UOp, show_ns

from .cut_pairs import PairCuts
from .open_units import OpenUnits
from .placement_units import PlacementUnit, Value

__all__ = ["PlacementChoice", "choose_devices", "on_one_device", "reason", "refusal", "total_ns"]


class PlacementChoice:
    """The cost of a placement, and the choice so far: `device[n]` is the device of unit n."""

    def __init__(
        self, units: Sequence[PlacementUnit], values: Sequence[Value], table: DeviceTable, price: Mapping[str, float]
    ):
        self.units, self.values, self.table = units, values, table._replace(price=price)
        self.names = [spec.name for spec in table.specs if spec.computes]
        self.device: list[str] = [unit.pinned or self.names[0] for unit in units]
        self._times: dict[tuple[KernelWork, int], dict[str, float]] = {}  # equal layers have units that take as long
        self.cost = [self._costs(unit) for unit in units]
        for first in [unit.number for unit in units if not unit.is_leaf][:1]:  # a split begins with it
            self.cost[first] = {name: ns + table.spec(name).start_ns for name, ns in self.cost[first].items()}
        self.given: list[list[Value]] = [[] for _ in units]  # values of a unit
        for value in values:
            self.given[value.producer.number].append(value)

    def _costs(self, unit: PlacementUnit) -> dict[str, float]:
        """Time of a unit on each device that it may run on."""
        if unit.pinned is not None and unit.is_leaf:
            return {unit.pinned: 0.0}
        found: dict[str, float] = {}
        work, result = unit.kernel_work, unit.size_bytes - unit.read_bytes
        if (work, result) not in self._times:
            self._times[work, result] = {
                spec.name: spec.in_batch_ns + spec.kernel_ns(work) + self.table.price.get(spec.name, 0.0) * result
                for spec in self.table.specs
            }
        times = self._times[work, result]
        for spec in self.table.specs:
            if unit.pinned not in (None, spec.name) or (unit.pinned is None and not spec.computes):
                continue
            is_free = unit.pinned is None or unit.pin is not None
            if is_free and spec.refused and any(refusal(spec.refused, node) for node in unit.nodes):
                continue
            found[spec.name] = times[spec.name]
        return found

    def borders_ns(self, value: Value, device: Sequence[str]) -> float:
        """Time of the copies of a value under a placement, and of the splits that begin with them."""
        home, is_given = device[value.producer.number], value.producer.is_leaf
        away = {device[reader.number] for reader in value.readers} - {home}
        return sum(self.table.border_ns(home, name, value.size_bytes, is_given) for name in away) if away else 0.0

    def moved_ns(self, unit: PlacementUnit, name: str) -> float:
        """How much longer the graph would take with one unit on another device."""
        touched = {value.node: value for value in (*self.given[unit.number], *unit.inputs.values())}.values()
        moved = {unit.number: name}
        before = sum(self.borders_ns(value, self.device) for value in touched)
        after = sum(self.borders_ns(value, _Moved(self.device, moved)) for value in touched)
        costs = self.cost[unit.number]
        return costs[name] - costs[self.device[unit.number]] + after - before


class _Moved(Sequence[str]):
    """A placement with some units on other devices."""

    def __init__(self, device: Sequence[str], moved: Mapping[int, str]) -> None:
        self.device, self.moved = device, moved

    def __getitem__(self, number: Any) -> Any:
        return self.moved.get(number) or self.device[number]

    def __len__(self) -> int:
        return len(self.device)


def refusal(refused: Mapping[tuple[Op, tuple[DType, ...]], str], node: UOp) -> str:
    """Why a device cannot compute a node; "" if it can."""
    return refused.get((node.op, tuple(s.dtype for s in node.src)), "") if refused else ""


def total_ns(choice: PlacementChoice, device: Sequence[str]) -> float:
    """Predicted time of a placement; infinite where a device cannot compute a unit."""
    kernels = sum(choice.cost[n].get(name, math.inf) for n, name in enumerate(device))
    return kernels + sum(choice.borders_ns(value, device) for value in choice.values)


def choose_devices(choice: PlacementChoice) -> None:
    """Choose the device of every unit. Each unit must have one that can compute it."""
    left = OpenUnits(choice.cost, choice.values, choice.table)
    start = [known if known >= 0 else min(range(len(costs)), key=costs.__getitem__)
             for known, costs in zip(left.device, left.cost, strict=True)]  # fmt: skip
    number = {name: n for n, name in enumerate(left.names)}
    pairs = [*itertools.combinations([number[name] for name in choice.names], 2)]
    cuts, orders = PairCuts(left), [pairs, pairs[::-1]] if len(pairs) > 1 else [pairs]
    _, best = min([cuts.improved(start, order) for order in orders], key=itemgetter(0))
    choice.device = [left.names[n] for n in best]


def on_one_device(choice: PlacementChoice, name: str) -> list[str]:
    """All on one device, as far as it can."""
    return [name if name in costs else min(costs, key=costs.__getitem__) for costs in choice.cost]


def reason(choice: PlacementChoice, unit: PlacementUnit) -> str:
    """Why a unit is where it is."""
    own = choice.device[unit.number]
    if unit.pinned is not None:
        return unit.why
    costs = choice.cost[unit.number]
    for spec in choice.table.specs:
        found = next((why for node in unit.nodes if (why := refusal(spec.refused, node))), "") if spec.refused else ""
        if spec.computes and found and len(costs) == 1:
            return f"{spec.name} cannot: {found}"
    others = [(choice.moved_ns(unit, name), name) for name in costs.keys() - {own}]
    if not others:
        return f"{own} is the only device that can"
    more, name = min(others)
    by_passes = " (PLACE=passes)" if choice.table.method == "passes" else ""
    return f"{'dearer' if more < 0 else 'cheaper'} by {show_ns(abs(more))} than {name}{by_passes}"
