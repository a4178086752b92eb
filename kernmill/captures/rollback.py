"""class Rollback: rolls back tensors, gradients and containers after an out-of-memory call."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from kernmill.ir import UOp
from kernmill.runtime import STALE

from .guards import Guard, Walk
from .ownership import Holders
from .pytree import Parts, contents, kind_of

__all__ = ["Rollback"]


class Rollback:
    """The state reachable from a captured function before a call. Other Python values, such as a counter, are not
    rolled back."""

    def __init__(self, name: str, walk: Walk, parts: Parts) -> None:
        self._name, self._walk, self._holders = name, walk, Holders(parts)
        tensors = {id(t): t for t in (*walk.tensors.values(), *parts.tensors)}.values()
        self._before = [(t, t.uop, t._device, t.requires_grad, t.grad) for t in tensors]

    def put_back(self) -> str:
        """Roll back everything, or nothing if memory already has other values. Return a note for the user."""
        if any(tensor.uop is not uop and _is_overwritten(uop) for tensor, uop, *_ in self._before):
            return (
                f"jit: {self._name} had already realized some of its assignments: these remain, the others are "
                "still pending."
            )
        for tensor, uop, device, requires_grad, grad in self._before:
            if tensor.uop is not uop:
                tensor._put(uop)
            tensor._device, tensor.requires_grad, tensor.grad = device, requires_grad, grad
        for number, kind, before, _ in [*self._holders.changed()]:
            kind.fill(self._holders.parts.holders[number], list(before), list(before.values()))
        self._restore_locations()
        kept = Guard(self._walk).explain()
        exception = f", but {kept!r}" if kept else ""
        return f"jit: the state before this call of {self._name} is restored{exception}."

    def _restore_locations(self) -> None:
        """Roll back containers, then other locations."""
        for container, before in self._walk.containers.values():
            kind = kind_of(container)
            if kind is not None and [*map(id, contents(container, kind).values())] != [*map(id, before.values())]:
                kind.fill(container, list(before), list(before.values()))
        for location, tensor in self._walk.tensors.items():
            if location not in self._walk.owners and not location.endswith(".grad"):  # in a tuple; of a tensor
                scope = {**self._walk.scope, "before": tensor}
                if not _is_there(location, scope):
                    with suppress(Exception):  # the object rejects writes; its guard reports it
                        exec(f"{location} = before", scope)


def _is_there(location: str, scope: dict[str, Any]) -> bool:
    try:
        return eval(f"{location} is before", scope)  # type: ignore[no-any-return]
    except (LookupError, AttributeError, ValueError):  # an empty cell
        return False


def _is_overwritten(uop: UOp) -> bool:
    """True if an expression reads memory that has been overwritten."""
    return any(node.storage is STALE for node in uop.toposort(stop=lambda u: u.storage is not None))
