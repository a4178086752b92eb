"""Better placements by minimum cuts: the units on two devices are divided between them as well as can be.

Units on the source's side of a cut are on the first device. A copy is an edge between who makes a value and a gate
that is on the sink's side as soon as one reader is. Tests: tests/compiler/graph/test_place.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .min_cut import Network
from .open_units import OpenUnits, OpenValue

__all__ = ["PairCuts"]

_SOURCE, _SINK = 0, 1


class PairCuts:
    """Cuts of one placement problem. A cut depends only on the units that are on third devices: each is made once."""

    def __init__(self, units: OpenUnits) -> None:
        self.units = units
        self._known = dict[tuple[int, ...], tuple[float, list[int]]]()

    def improved(self, device: list[int], pairs: Sequence[tuple[int, int]]) -> tuple[float, list[int]]:
        """The best placement that cuts of pairs of devices, tried in this order, lead to, and its time."""
        time_ns = self.units.total_ns(device)
        waiting = list(pairs)
        while waiting:
            pair = waiting.pop(0)
            time, tried = self._cut(device, pair)
            if time < time_ns * (1 - 1e-9):
                device, time_ns = tried, time
                waiting = [other for other in pairs if other != pair]
        return time_ns, device

    def _cut(self, device: list[int], pair: tuple[int, int]) -> tuple[float, list[int]]:
        """The best placement in which units of these two devices may change to the other one, and its time."""
        key = (*pair, *[-1 if device[unit] in pair else device[unit] for unit in self.units.open])
        if key not in self._known:
            found = _Cut(self.units, device, *pair).run()
            self._known[key] = self.units.total_ns(found), found
        return self._known[key]


class _Cut:
    """One cut between the devices `one` and `other`. `gain[node]`: what that unit saves by itself on `one`."""

    def __init__(self, units: OpenUnits, device: list[int], one: int, other: int) -> None:
        self.units, self.device, self.one, self.other = units, device, one, other
        cost, pair = units.cost, (one, other)
        self.free = [n for n in units.open if device[n] in pair and max(cost[n][one], cost[n][other]) < math.inf]
        self.gain = [0.0, 0.0, *[cost[n][other] - cost[n][one] for n in self.free]]
        self.node = [0] * len(device)  # by unit; 0: its device is fixed
        for node, n in enumerate(self.free, 2):
            self.node[n] = node
        self.network = Network(2 + len(self.free))

    def run(self) -> list[int]:
        """The placement."""
        for value in self.units.values.values():
            self._add_value(value)
        for node, gain in enumerate(self.gain):
            if gain:
                self.network.add_edge(*((_SOURCE, node) if gain > 0 else (node, _SINK)), abs(gain))
        side = self.network.source_side()
        device = list(self.device)
        for node, n in enumerate(self.free, 2):
            device[n] = self.one if node in side else self.other
        return device

    def _add_value(self, value: OpenValue) -> None:
        """Add the edges of a value's copies, or what they add to the gain of a single unit."""
        one, other, maker = self.one, self.other, self.node[value.maker]
        fixed, readers = set[int](), list[int]()
        for reader in value.readers:
            if not (node := self.node[reader]):
                fixed.add(self.device[reader])
            elif node != maker:
                readers.append(node)
        if maker:
            ahead, back = value.copy_ns[one], value.copy_ns[other]
            if fixed:
                self.gain[maker] += sum([back[to] - ahead[to] for to in fixed])
            self._any(maker, readers, 0.0 if other in fixed else ahead[other], 0.0 if one in fixed else back[one])
        elif readers:
            row = value.copy_ns[self.device[value.maker]]
            self._any(_SOURCE, readers, 0.0 if other in fixed else row[other], 0.0)
            self._any(_SINK, readers, 0.0, 0.0 if one in fixed else row[one])

    def _any(self, at: int, readers: Sequence[int], ahead: float, back: float) -> None:
        """Edges that are cut once if the maker is on one side and any reader on the other one. `ahead`: the copy if the
        maker is on the source's side."""
        if not readers or ahead <= 0 >= back:
            return
        if len(readers) == 1:
            if at > _SINK:
                self.network.add_edge(at, readers[0], ahead, back)
            else:
                self.gain[readers[0]] += ahead - back
            return
        for cost, is_ahead in ((ahead, True), (back, False)):
            if cost <= 0:
                continue
            gate = self.network.add_node()
            self.network.add_edge(*((at, gate) if is_ahead else (gate, at)), cost)
            for node in readers:
                self.network.add_edge(*((gate, node) if is_ahead else (node, gate)), math.inf)
