"""The placement of ggml's scheduler, over our units: a baseline for the choice by predicted time.

It knows no times. Units follow the memory that they read, and what reads none takes the device of a neighbour in the
order of the graph. The last device of the list is what ggml calls the CPU: it gets only what nobody else wants. ggml's
third step gives products to a library on the same memory. Our devices share none, so it only decides for units that no
neighbour decided. Tests: tests/compiler/graph/test_place_by_passes.py.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from .choose_devices import PlacementChoice
from .placement_units import PlacementUnit

__all__ = ["place_by_passes"]

_NO_SLOTS: Container[int] = ()


def place_by_passes(choice: PlacementChoice, inputs: Container[int] = _NO_SLOTS) -> None:
    """Choose the device of every unit. `inputs`: the slots of memory that decides nothing, as ggml's flag says it."""
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
    """The device of the first memory that a unit reads, if it can compute the unit; "": nothing decides."""
    if unit.pinned is not None:
        return unit.pinned
    for value in unit.inputs.values():
        leaf = value.producer
        if leaf.is_leaf and leaf.head.arg[0] not in inputs and leaf.pinned in choice.cost[unit.number]:
            return leaf.pinned or ""
    return ""


def _pass_on(choice: PlacementChoice, order: Iterable[PlacementUnit], found: dict[int, str], barrier: str) -> None:
    """Units without a device take that of the one before them. A unit on `barrier` passes nothing on."""
    running = ""
    for unit in order:
        if found[unit.number]:
            running = found[unit.number] if found[unit.number] != barrier else ""
        elif running and running in choice.cost[unit.number]:
            found[unit.number] = running


def _where_most_is(choice: PlacementChoice, unit: PlacementUnit, found: dict[int, str]) -> str:
    """The device that has most of what a unit reads; of equals the first of the list."""
    held: Sequence[str] = [found.get(v.producer.number) or v.producer.pinned or "" for v in unit.inputs.values()]
    names = [name for name in choice.names if name in choice.cost[unit.number]]
    return max(names, key=held.count)
