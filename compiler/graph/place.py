"""A device for each node, and copies where a value is read on another one.

When: after split_reduce, on the closed graph of a DEVICE that is a list; before fusion, so that no kernel crosses a
border. Guarantees: all sources of a node that computes have the node's device or none; a value is copied at
most once to each device. With one device the graph stays what it is. Tests: tests/compiler/graph/test_place.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from kernmill.ir import CompileError, DeviceTable, Ops, PlacedUnit, Placement, UOp, with_sources

from .choose_devices import PlacementChoice, choose_devices, on_one_device, reason, refusal, total_ns
from .place_by_passes import place_by_passes
from .placement_units import PlacementUnit, base_of, find_units, is_view

__all__ = ["Placed", "place"]


@dataclass(slots=True)
class Placed:
    """A graph with copies, and the devices of nodes without data of their own."""

    roots: list[UOp]
    devices: dict[UOp, str] = field(default_factory=dict[UOp, str])
    placement: Callable[[], Placement] | None = None


def place(
    roots: Sequence[UOp], devices: Sequence[str], table: DeviceTable | None, price: Mapping[str, float]
) -> Placed:
    """Place a closed graph whose PARAM slot i is on devices[i]. `price`: nanoseconds for each byte on a device.

    Without a table of several devices nothing changes.

    Raises:
        CompileError: no device can compute a node.
    """
    if table is None:
        return Placed([*roots])
    units, values, unit_of = find_units(roots, devices, table.pins)
    choice = PlacementChoice(units, values, table, price)
    for unit, costs in zip(units, choice.cost, strict=True):
        if not costs:
            raise _impossible(unit, table)
    if table.method == "passes":
        place_by_passes(choice)
    else:
        choose_devices(choice)
    rewriter = _Rewriter(choice.device, unit_of)
    placed = rewriter.run(list(roots))
    return Placed(placed, rewriter.hints, cache(lambda: _placement(choice)))


def _placement(choice: PlacementChoice) -> Placement:
    """Return the part of the decision that people read."""
    rows = [
        PlacedUnit(
            unit.head.op.name.lower(), unit.head.origin, choice.device[unit.number], reason(choice, unit),
            choice.cost[unit.number][choice.device[unit.number]],
        )
        for unit in choice.units if not unit.is_leaf
    ]  # fmt: skip
    alternatives = {name: total_ns(choice, on_one_device(choice, name)) for name in choice.names}
    return Placement(rows, total_ns(choice, choice.device), alternatives)


def _impossible(unit: PlacementUnit, table: DeviceTable) -> CompileError:
    if unit.pin is not None:
        refused = table.spec(unit.pin.device).refused
        why = next(filter(None, (refusal(refused, node) for node in unit.nodes)))
        return CompileError(
            f"PIN={unit.pin.pattern}={unit.pin.device}: {unit.pin.device} cannot compute {unit.head.origin} ({why}). "
            "Pin it to another device, or make the pattern narrower."
        )
    for node in unit.nodes:
        reasons = {s.name: refusal(s.refused, node) for s in table.specs if s.computes}
        if all(reasons.values()):
            why = "; ".join(f"{name}: {text}" for name, text in reasons.items())
            operands = ", ".join(s.dtype.name for s in node.src)
            line = f" ({node.origin})" if node.origin else ""
            return CompileError(
                f"{node.op.name.lower()} of {operands}{line}: no device of DEVICE={','.join(table.names)} computes it "
                f"({why}). Add a device to the list, or use another dtype."
            )
    names = ",".join(table.names)
    return CompileError(f"DEVICE={names}: no device computes all of {unit.head.origin}. Store a part by .contiguous().")


class _Rewriter:
    """Builds the graph with copies. `at[device][node]` is the node that units on a device read."""

    def __init__(self, device: Sequence[str], unit_of: Mapping[UOp, PlacementUnit]) -> None:
        self.device, self.unit_of = device, unit_of
        self.at: dict[str, dict[UOp, UOp]] = {name: {} for name in {*device, ""}}
        self.hints: dict[UOp, str] = {}

    def run(self, roots: Sequence[UOp]) -> list[UOp]:
        for node, unit in self.unit_of.items():
            self.compute(node, unit)
        return [self.read(root, self.home(base) if (base := base_of(root)) in self.unit_of else "") for root in roots]

    def home(self, node: UOp) -> str:
        """The device of a node that computes."""
        return self.device[self.unit_of[node].number]

    def compute(self, node: UOp, unit: PlacementUnit) -> None:
        """The node on its own device."""
        home = self.device[unit.number]
        at = self.at[home]
        if node.op is Ops.COPY:
            at[node] = self.read(node.src[0], home, unit) if base_of(node.src[0]) in self.unit_of else node
            return
        new = with_sources(node, tuple([at.get(source) or self.read(source, home, unit) for source in node.src]))
        at[node] = new
        self.hints[new] = home

    def read(self, node: UOp, device: str, unit: PlacementUnit | None = None) -> UOp:
        """A node as a unit on `device` reads it: with a copy of the smallest view, where it is on another device."""
        at = self.at[device]
        if (known := at.get(node)) is not None:
            return known
        path = [node]
        while path[-1] not in at and is_view(path[-1]):
            path.append(path[-1].src[0])
        base = path[-1]
        if base in at:
            new = at[base]
        elif unit is None or node not in unit.inputs:
            new = base  # made wherever it is read
        else:
            cut = unit.inputs[node].node
            new = UOp(Ops.COPY, cut.dtype, (self._view(cut, self.home(base)),), device)
            new.origin = new.origin or cut.origin
            path = path[: path.index(cut) + 1]
            self.hints[new] = device
        return self._above(path, new, at)

    def _view(self, node: UOp, home: str) -> UOp:
        """A view on the device of its base."""
        at, path = self.at[home], [node]
        while path[-1] not in at:
            path.append(path[-1].src[0])
        return self._above(path, at[path[-1]], at)

    @staticmethod
    def _above(path: Sequence[UOp], new: UOp, at: dict[UOp, UOp]) -> UOp:
        """The views of a path, lowest last, on top of a new lowest node."""
        at[path[-1]] = new
        for node in path[-2::-1]:
            new = at[node] = with_sources(node, (new,))
        return new
