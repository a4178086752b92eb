"""The units whose device is still open, and what each device would cost: what the cuts of choose_devices work on.

A copy that depends on one open unit is part of that unit's cost. A unit is decided where one device gains more than all
copies that depend on other units may cost. Both are right whatever the others do, and most units end here: they read a
large weight that is on a device. Devices are numbers. Tests: tests/compiler/graph/test_place.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kernmill.ir import DeviceTable

from .placement_units import Value

__all__ = ["OpenUnits", "OpenValue"]


class OpenValue(NamedTuple):
    """A value by numbers. `copy_ns[a][b]`: the time of its copy from one device to another, and of a start there."""

    maker: int
    readers: list[int]
    copy_ns: list[list[float]]

    def time_ns(self, device: Sequence[int]) -> float:
        """Time of its copies under a placement."""
        row = self.copy_ns[device[self.maker]]
        if len(self.readers) == 1:
            return row[device[self.readers[0]]]
        return sum([row[to] for to in {device[reader] for reader in self.readers}])


class OpenUnits:
    """A placement problem without what is decided already. `device[n]` is -1 where unit n is open."""

    def __init__(self, cost: Sequence[Mapping[str, float]], values: Sequence[Value], table: DeviceTable) -> None:
        self.names = [spec.name for spec in table.specs]
        number = {name: n for n, name in enumerate(self.names)}
        self.cost = [[costs.get(name, math.inf) for name in self.names] for costs in cost]
        self.device = [number[next(iter(costs))] if len(costs) == 1 else -1 for costs in cost]
        self.values = dict[int, OpenValue]()
        self.of: list[list[int]] = [[] for _ in cost]  # values that a unit makes or reads
        copies = dict[tuple[int, bool], list[list[float]]]()  # by bytes, and by whether a value is given
        for place, value in enumerate(values):
            maker, readers = value.producer.number, [reader.number for reader in value.readers]
            kind = value.size_bytes, value.producer.is_leaf
            if kind not in copies:
                copies[kind] = [[table.border_ns(a, b, *kind) for b in self.names] for a in self.names]
            self.values[place] = OpenValue(maker, readers, copies[kind])
            for unit in {maker, *readers}:
                self.of[unit].append(place)
        for place in list(self.values):
            self._forget_settled(place)
        self._decide_all(range(len(cost)))
        self.open = [unit for unit, device in enumerate(self.device) if device < 0]

    def _forget_settled(self, place: int) -> None:
        """Forget a value that depends on one open unit at most; its copies are part of that unit's cost."""
        value, device = self.values[place], self.device
        waiting = {unit for unit in (value.maker, *value.readers) if device[unit] < 0}
        if len(waiting) > 1:
            return
        for unit in waiting:
            costs = self.cost[unit]
            for n, cost in enumerate(costs):
                if cost < math.inf:
                    device[unit] = n
                    costs[n] += value.time_ns(device)
            device[unit] = -1
        del self.values[place]

    def _decide_all(self, units: Iterable[int]) -> None:
        """Decide what can be decided, and what follows from that."""
        waiting = dict.fromkeys(unit for unit in units if self.device[unit] < 0)
        while waiting:
            unit = next(iter(waiting))
            del waiting[unit]
            if not self._decide(unit):
                continue
            for place in [place for place in self.of[unit] if place in self.values]:
                value = self.values[place]
                waiting |= dict.fromkeys(n for n in (value.maker, *value.readers) if self.device[n] < 0)
                self._forget_settled(place)

    def _decide(self, unit: int) -> bool:
        """Choose the cheapest device of a unit if no copy can make another one better."""
        costs = self.cost[unit]
        least, second, *_ = sorted(costs)
        best, margin = costs.index(least), second - least
        for place in self.of[unit]:
            if (value := self.values.get(place)) is not None:
                margin -= self._most_ns(value, unit, best)
            if margin <= 0:
                return False
        self.device[unit] = best
        return True

    def _most_ns(self, value: OpenValue, unit: int, at: int) -> float:
        """The most that copies of a value can take more because one of its units is on device `at`."""
        known = {self.device[reader] for reader in value.readers if reader != unit}
        if unit == value.maker:
            row = value.copy_ns[at]
            waiting = min(len(row), sum(self.device[reader] < 0 for reader in value.readers))
            return sum([row[n] for n in known if n >= 0]) + sum(sorted(row)[len(row) - waiting :])
        home = self.device[value.maker]
        if at in known:
            return 0.0
        return value.copy_ns[home][at] if home >= 0 else max(row[at] for row in value.copy_ns)

    def total_ns(self, device: Sequence[int]) -> float:
        """Predicted time of a placement, without what is the same in all."""
        copies = sum([value.time_ns(device) for value in self.values.values()])
        return copies + sum([self.cost[unit][device[unit]] for unit in self.open])
