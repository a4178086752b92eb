"""The device of each unit: the least predicted time of kernels and copies, in nanoseconds.

Time of a placement = sum of kernel times on their devices + for each value, for each other device that reads it, one
copy. For two devices the least is found exactly, as a minimum cut; for more, pairs of devices are cut in turn until
nothing gains. Tests: tests/compiler/graph/test_place.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from kernmill.ir import DeviceTable, DType, Op, UOp, show_ns

from .min_cut import Network
from .placement_units import PlacementUnit, Value

__all__ = ["PlacementChoice", "choose_devices", "on_one_device", "reason", "refusal", "total_ns"]

_SOURCE, _SINK = 0, 1


class PlacementChoice:
    """The cost of a placement, and the choice so far: `device[n]` is the device of unit n."""

    def __init__(
        self, units: Sequence[PlacementUnit], values: Sequence[Value], table: DeviceTable, price: Mapping[str, float]
    ):
        self.units, self.values, self.table = units, values, table
        self.names = [spec.name for spec in table.specs if spec.computes]
        self.device: list[str] = [unit.pinned or self.names[0] for unit in units]
        self.cost = [self._costs(unit, price) for unit in units]
        self.given: list[list[Value]] = [[] for _ in units]  # values of a unit
        for value in values:
            self.given[value.producer.number].append(value)

    def _costs(self, unit: PlacementUnit, price: Mapping[str, float]) -> dict[str, float]:
        """Time of a unit on each device that it may run on. `price`: ns for a byte where memory is short."""
        if unit.pinned is not None and unit.is_leaf:
            return {unit.pinned: 0.0}
        found: dict[str, float] = {}
        for spec in self.table.specs:
            if unit.pinned not in (None, spec.name) or (unit.pinned is None and not spec.computes):
                continue
            is_free = unit.pinned is None or unit.pin is not None
            if is_free and spec.refused and any(refusal(spec.refused, node) for node in unit.nodes):
                continue
            additions, size = max(unit.work, 0.0), unit.size_bytes
            time = spec.kernel_ns(additions, unit.functions, products=unit.products, size_bytes=size)
            found[spec.name] = time + price.get(spec.name, 0.0) * unit.size_bytes
        return found

    def copies_ns(self, value: Value, device: Sequence[str]) -> float:
        """Time of the copies of a value under a placement."""
        home = device[value.producer.number]
        away = {device[reader.number] for reader in value.readers} - {home}
        return sum(self.table.copy_ns(home, name, value.size_bytes) for name in away) if away else 0.0

    def moved_ns(self, unit: PlacementUnit, name: str) -> float:
        """How much longer the graph would take with one unit on another device."""
        touched = {value.node: value for value in (*self.given[unit.number], *unit.inputs.values())}.values()
        moved = {unit.number: name}
        before = sum(self.copies_ns(value, self.device) for value in touched)
        after = sum(self.copies_ns(value, _Moved(self.device, moved)) for value in touched)
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
    return kernels + sum(choice.copies_ns(value, device) for value in choice.values)


def choose_devices(choice: PlacementChoice) -> None:
    """Choose the device of every unit. Each unit must have one that can compute it."""
    starts = [on_one_device(choice, name) for name in choice.names]
    if len(choice.names) > 2:
        starts.append(_after_largest_source(choice))
    starts.sort(key=lambda device: total_ns(choice, device))
    few = starts[: max(1, len(choice.names) - 1)]  # of two devices, one cut is the best from wherever it starts
    choice.device = min((_improved(choice, start) for start in few), key=lambda device: total_ns(choice, device))


def on_one_device(choice: PlacementChoice, name: str) -> list[str]:
    """All on one device, as far as it can."""
    return [name if name in costs else min(costs, key=costs.__getitem__) for costs in choice.cost]


def _after_largest_source(choice: PlacementChoice) -> list[str]:
    """Each unit where the largest of what it reads is."""
    device = list(choice.device)
    for unit in choice.units:
        if unit.is_leaf:
            continue
        inputs = sorted(unit.inputs.values(), key=lambda value: -value.size_bytes)
        wanted = [device[value.producer.number] for value in inputs]
        costs = choice.cost[unit.number]
        device[unit.number] = next((name for name in wanted if name in costs), min(costs, key=costs.__getitem__))
    return device


def _improved(choice: PlacementChoice, device: list[str]) -> list[str]:
    """The best placement that cuts between pairs of devices lead to."""
    best = total_ns(choice, device)
    pairs = list(itertools.combinations(choice.names, 2))
    waiting = list(pairs)
    while waiting:
        one, other = waiting.pop(0)
        tried = _cut(choice, device, one, other)
        if (time := total_ns(choice, tried)) < best * (1 - 1e-9):
            device, best = tried, time
            waiting = [pair for pair in pairs if pair != (one, other)]
    return device


def _cut(choice: PlacementChoice, device: list[str], one: str, other: str) -> list[str]:
    """The best placement in which units of these two devices may change to the other one.

    Units on the source's side of the cut are on `one`. A value on `one` is copied if some reader is on `other`: an
    edge leads to a node that is on the sink's side as soon as one reader is. Values on `other` have the reverse edges.
    """
    pair = (one, other)
    device = list(device)
    free = {n for n, name in enumerate(device) if name in pair and len(choice.cost[n].keys() & {*pair}) == 2}
    while decided := [n for n in sorted(free) if _decide(choice, device, n, pair, free)]:
        free.difference_update(decided)
    if not free:
        return device
    network = Network(2 + len(free))
    node = {n: 2 + index for index, n in enumerate(sorted(free))}
    for n in free:
        costs = choice.cost[n]
        network.add_edge(_SOURCE, node[n], costs[other])  # is cut where the unit is on `other`
        network.add_edge(node[n], _SINK, costs[one])
    touched = {value.node: value for n in free for value in choice.given[n]}
    touched |= {value.node: value for n in free for value in choice.units[n].inputs.values()}
    for value in touched.values():
        _add_copies(network, node, choice, device, value, pair)
    side = network.source_side()
    for n in free:
        device[n] = one if node[n] in side else other
    return device


def _decide(choice: PlacementChoice, device: list[str], n: int, pair: tuple[str, str], free: set[int]) -> bool:
    """Choose one of two devices for a unit if that is right whatever happens to the others: if it gains more than all
    copies that depend on others may cost. Most units read a large weight that is on a device, and are such."""
    (one, other), table, unit = pair, choice.table, choice.units[n]
    costs = choice.cost[n]
    gain, bound = costs[other] - costs[one], 0.0  # of being on `one`
    for value in unit.inputs.values():
        maker = value.producer.number
        if maker in free:
            bound += max(table.copy_ns(one, other, value.size_bytes), table.copy_ns(other, one, value.size_bytes))
            continue
        to = [table.copy_ns(device[maker], name, value.size_bytes) for name in pair]
        if len(value.readers) == 1:
            gain += to[1] - to[0]
        else:
            bound += max(to)
    for value in choice.given[n]:
        away = [{name, *(device[r.number] for r in value.readers if r.number not in free)} - {name} for name in pair]
        away = [names | {*pair} - {name} for names, name in zip(away, pair, strict=True)]
        bound += max(
            sum(table.copy_ns(name, to, value.size_bytes) for to in names)
            for name, names in zip(pair, away, strict=True)
        )
    if abs(gain) <= bound:
        return False
    device[n] = one if gain > 0 else other
    return True


def _add_copies(
    network: Network,
    node: Mapping[int, int],
    choice: PlacementChoice,
    device: list[str],
    value: Value,
    pair: tuple[str, str],
) -> None:
    """Add the edges for the copies of one value."""
    table, size, (one, other) = choice.table, value.size_bytes, pair
    maker = value.producer.number
    readers = [reader.number for reader in value.readers]
    ends = {one: _SOURCE, other: _SINK}
    places = [node.get(n, ends.get(device[n], -1)) for n in readers]  # -1: on a third device
    third = {device[n] for n in readers if node.get(n) is None} - {*pair}
    if maker in node:
        at = node[maker]
        network.add_edge(_SOURCE, at, sum(table.copy_ns(other, name, size) for name in third))
        network.add_edge(at, _SINK, sum(table.copy_ns(one, name, size) for name in third))
    elif device[maker] in pair:
        at = ends[device[maker]]
    else:
        home = device[maker]
        _any_reader(network, _SOURCE, places, table.copy_ns(home, other, size), to_sink=True)
        _any_reader(network, _SINK, places, table.copy_ns(home, one, size), to_sink=False)
        return
    _any_reader(network, at, places, table.copy_ns(one, other, size), to_sink=True)
    _any_reader(network, at, places, table.copy_ns(other, one, size), to_sink=False)


def _any_reader(network: Network, at: int, places: Sequence[int], cost: float, *, to_sink: bool) -> None:
    """An edge that is cut once if the maker is on one side and any of the readers on the other one."""
    readers = {place for place in places if place not in (-1, at)}
    if not readers or cost <= 0:
        return
    if len(readers) == 1:
        (reader,) = readers
        network.add_edge(*((at, reader) if to_sink else (reader, at)), cost)
        return
    gate = network.add_node()
    network.add_edge(*((at, gate) if to_sink else (gate, at)), cost)
    for reader in readers:
        network.add_edge(*((gate, reader) if to_sink else (reader, gate)), math.inf)


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
    return f"cheaper by {show_ns(more)} than {name}"
