"""class Schedule: a schedule under construction: the actions so far, and the kernel that they make.

Each action is applied as it is added, so that the loops it makes are known by the names they really have: whoever packs
an operand or orders loops asks for them, and nobody spells a name. Tests: tests/compiler/optimize/test_schedule.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from kernmill.ir import CompileError, UOp

from ..kernel import order_of
from .actions import CUTS, Action, apply_action

__all__ = ["Schedule"]

_COPIED = ("unroll", "interleave", "rfactor", "vectorize")  # lanes are named last: they lie side by side in a copy


class Schedule:
    """The schedule of one kernel; `ast` is the kernel with its actions applied."""

    def __init__(self, ast: UOp) -> None:
        self.ast = ast
        self.actions: list[Action] = []
        self._cuts: dict[str, list[tuple[str, str, int]]] = {}  # of each loop: verb, the inner loop, the amount

    @property
    def loops(self) -> tuple[str, ...]:
        """The output loops that are left, outermost first."""
        return order_of(self.ast)

    def add(self, verb: str, *args: object) -> Mapping[str, str]:
        """One more action: the loops that it makes, each by the loop that it is made of.

        Raises:
            CompileError: it does not fit.
        """
        action = Action(verb, tuple(str(arg) for arg in args))
        self.ast, made = apply_action(self.ast, action)
        self.actions.append(action)
        return made

    def cut(self, verb: str, loop: str, amount: int) -> list[str]:
        """`add` of a verb that cuts a loop: the inner loop; none where the amount is 1, which leaves all as it is."""
        if amount == 1:
            return []
        inner = self.add(verb, loop, amount)[loop]
        self._cuts.setdefault(loop, []).append((verb, inner, amount))
        return [inner]

    def tries(self, verb: str, *args: object) -> bool:
        """Whether it fits; then it is added. An amount of 1 does by itself."""
        try:
            if verb in CUTS:
                self.cut(verb, str(args[0]), int(str(args[1])))
            else:
                self.add(verb, *args)
        except CompileError:
            return False
        return True

    def order(self, names: Iterable[str]) -> None:
        """The output loops in this order; of the names those that no cut has used up."""
        self.add("order", *(name for name in names if name in self.loops))

    def copies(self, loop: str) -> list[str]:
        """What of a loop is copied out and its lanes, as `stage` takes them."""
        return [inner for wanted in _COPIED for verb, inner, _ in self._cuts.get(loop, []) if verb == wanted]

    def together(self, loop: str) -> int:
        """Iterations of a loop that are copied out or lanes."""
        return prod(amount for verb, _, amount in self._cuts.get(loop, []) if verb in _COPIED)
