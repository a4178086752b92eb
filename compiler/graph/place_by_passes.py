"""The placement of ggml's scheduler, over our units: a baseline for the choice by predicted time.

It reads no times. A unit goes to the device of the first memory that it reads; a unit that reads none takes the device
of a neighbour in the order of the graph. The last device of the list has the role of ggml's CPU: it is passed on to
neighbours only after all others. ggml's third step also moves products to a faster library on the same memory; here it
only decides for units that no neighbour decided. Tests: tests/compiler/graph/test_place_by_passes.py.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from .choose_devices import PlacementChoice
from .placement_units import PlacementUnit

__all__ = ["place_by_passes"]

_NO_SLOTS: Container[int] = ()


def place_by_passes(choice: PlacementChoice, inputs: Container[int] = _NO_SLOTS) -> None:
    """Choose the device of every unit. `inputs`: the slots of memory that does not decide (ggml's flag for inputs)."""
    computing = [unit for unit in choice.units if not unit.is_leaf]
    found = {unit.number: _of_memory(choice, unit, inputs) for unit in computing}
    last = choice.names[-1]
    for only_before_last in (True, False):
        for order in (computing, computing[::-1]):
            _pass_on(choice, order, found, last if only_before_last else "")
    for unit in computing:
        if not found[unit.number]:
            found[unit.number] = _where_most_is(choice, unit, found)
    choice.device = [found.get(unit.number) or unit.pinned or last for unit in choice.units]


def _of_memory(choice: PlacementChoice, unit: PlacementUnit, inputs: Container[int]) -> str:
    """Return the device of the first memory that a unit reads, if that device can compute the unit; else ""."""
    if unit.pinned is not None:
        return unit.pinned
    for value in unit.inputs.values():
        leaf = value.producer
        if leaf.is_leaf and leaf.head.arg[0] not in inputs and leaf.pinned in choice.cost[unit.number]:
            return leaf.pinned or ""
    return ""


def _pass_on(choice: PlacementChoice, order: Iterable[PlacementUnit], found: dict[int, str], barrier: str) -> None:
    """Give each unit without a device that of the unit before it in `order`, unless that device is `barrier`."""
    running = ""
    for unit in order:
        if found[unit.number]:
            running = found[unit.number] if found[unit.number] != barrier else ""
        elif running and running in choice.cost[unit.number]:
            found[unit.number] = running


def _where_most_is(choice: PlacementChoice, unit: PlacementUnit, found: dict[int, str]) -> str:
    """Return the device that has most of the inputs of a unit. Ties: the first of the list."""
    held: Sequence[str] = [found.get(v.producer.number) or v.producer.pinned or "" for v in unit.inputs.values()]
    names = [name for name in choice.names if name in choice.cost[unit.number]]
    return max(names, key=held.count)
