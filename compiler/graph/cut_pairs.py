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

    def __init__(self, units: OpenUnits, pairs: Sequence[tuple[int, int]]) -> None:
        self.units, self.pairs = units, pairs
        self._known = dict[tuple[int, ...], list[int]]()

    def improved(self, device: list[int]) -> list[int]:
        """The best placement that cuts between pairs of devices lead to."""
        best = self.units.total_ns(device)
        waiting = list(self.pairs)
        while waiting:
            pair = waiting.pop(0)
            tried = self._cut(device, pair)
            if (time := self.units.total_ns(tried)) < best * (1 - 1e-9):
                device, best = tried, time
                waiting = [other for other in self.pairs if other != pair]
        return device

    def _cut(self, device: list[int], pair: tuple[int, int]) -> list[int]:
        """The best placement in which units of these two devices may change to the other one."""
        key = (*pair, *[-1 if device[unit] in pair else device[unit] for unit in self.units.open])
        if key not in self._known:
            self._known[key] = _Cut(self.units, device, *pair).run()
        return self._known[key]


class _Cut:
    """One cut between the devices `one` and `other`. `gain[n]`: what unit n saves by itself on `one`."""

    def __init__(self, units: OpenUnits, device: list[int], one: int, other: int) -> None:
        self.units, self.device, self.one, self.other = units, device, one, other
        cost = units.cost
        free = [n for n in units.open if device[n] in (one, other) and max(cost[n][one], cost[n][other]) < math.inf]
        self.gain = {n: cost[n][other] - cost[n][one] for n in free}
        self.node = {n: 2 + index for index, n in enumerate(free)}
        self.network = Network(2 + len(free))

    def run(self) -> list[int]:
        """The placement."""
        places = dict.fromkeys([place for n in self.gain for place in self.units.of[n] if place in self.units.values])
        for place in places:
            self._add_value(self.units.values[place])
        for n, gain in self.gain.items():
            if gain:
                self.network.add_edge(*((_SOURCE, self.node[n]) if gain > 0 else (self.node[n], _SINK)), abs(gain))
        side = self.network.source_side()
        device = list(self.device)
        for n, node in self.node.items():
            device[n] = self.one if node in side else self.other
        return device

    def _add_value(self, value: OpenValue) -> None:
        """Add the edges of a value's copies, or what they add to the gain of a single unit."""
        one, other, gain = self.one, self.other, self.gain
        fixed = {self.device[reader] for reader in value.readers if reader not in gain}
        readers = [reader for reader in value.readers if reader in gain and reader != value.maker]
        if value.maker in gain:
            ahead, back = value.copy_ns[one], value.copy_ns[other]
            gain[value.maker] += sum([back[to] - ahead[to] for to in fixed])
            maker = self.node[value.maker]
            self._any(maker, readers, 0.0 if other in fixed else ahead[other], 0.0 if one in fixed else back[one])
            return
        row = value.copy_ns[self.device[value.maker]]
        self._any(_SOURCE, readers, 0.0 if other in fixed else row[other], 0.0)
        self._any(_SINK, readers, 0.0, 0.0 if one in fixed else row[one])

    def _any(self, at: int, readers: Sequence[int], ahead: float, back: float) -> None:
        """Edges that are cut once if the maker is on one side and any reader on the other one. `ahead`: the copy if the
        maker is on the source's side."""
        if len(readers) == 1 and at <= _SINK:
            self.gain[readers[0]] += ahead - back
            return
        if not readers or ahead <= 0 >= back:
            return
        if len(readers) == 1:
            self.network.add_edge(at, self.node[readers[0]], ahead, back)
            return
        for cost, is_ahead in ((ahead, True), (back, False)):
            if cost <= 0:
                continue
            gate = self.network.add_node()
            self.network.add_edge(*((at, gate) if is_ahead else (gate, at)), cost)
            for reader in readers:
                node = self.node[reader]
                self.network.add_edge(*((gate, node) if is_ahead else (node, gate)), math.inf)
