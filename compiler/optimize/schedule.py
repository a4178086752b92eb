"""class Schedule: a schedule under construction: the actions so far, and the kernel after them.

Each action is applied when it is added, so its new loops have their final names. A strategy that packs an operand or
orders loops uses the names that the methods return, and never spells one.
Tests: tests/compiler/optimize/test_schedule.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from kernmill.ir import CompileError, UOp

from ..kernel.facts import order_of
from .actions import CUTS, Action, apply_action

__all__ = ["Schedule"]

_UNROLLED = ("unroll", "interleave", "rfactor", "vectorize")  # innermost last: in a packed buffer lanes are contiguous


class Schedule:
    """The schedule of one kernel; `ast` is the kernel with its actions applied."""

    def __init__(self, ast: UOp) -> None:
        self.ast = ast
        self.actions: list[Action] = []
        self._cuts: dict[str, list[tuple[str, str, int]]] = {}  # per loop: action kind, the inner loop, the amount

    @property
    def loops(self) -> tuple[str, ...]:
        """The output loops that are left, outermost first."""
        return order_of(self.ast)

    def add(self, verb: str, *args: object) -> Mapping[str, str]:
        """Add an action. Return its new loops, by the name of the loop that each was split from.

        Raises:
            CompileError: it does not fit.
        """
        action = Action(verb, tuple(str(arg) for arg in args))
        self.ast, made = apply_action(self.ast, action)
        self.actions.append(action)
        return made

    def cut(self, verb: str, loop: str, amount: int) -> list[str]:
        """Add an action that splits a loop; return the inner loop in a list, empty if the amount is 1."""
        if amount == 1:
            return []
        inner = self.add(verb, loop, amount)[loop]
        self._cuts.setdefault(loop, []).append((verb, inner, amount))
        return [inner]

    def try_add(self, verb: str, *args: object) -> bool:
        """Add the action if it fits; return True if it does. An amount of 1 always fits."""
        try:
            if verb in CUTS:
                self.cut(verb, str(args[0]), int(str(args[1])))
            else:
                self.add(verb, *args)
        except CompileError:
            return False
        return True

    def order(self, names: Iterable[str]) -> None:
        """Order the output loops; names of loops that no longer exist are ignored."""
        self.add("order", *(name for name in names if name in self.loops))

    def unrolled_loops(self, loop: str) -> list[str]:
        """Return the unrolled and vector loops that were split off a loop, in the order of the arguments of `stage`."""
        return [inner for wanted in _UNROLLED for verb, inner, _ in self._cuts.get(loop, []) if verb == wanted]

    def unrolled_size(self, loop: str) -> int:
        """Return how many iterations of a loop are unrolled or lanes."""
        return prod(amount for verb, _, amount in self._cuts.get(loop, []) if verb in _UNROLLED)
