"""class Rollback: rolls back tensors, gradients and containers after an out-of-memory call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from kernmill.ir import UOp
from kernmill.runtime import STALE

from ..lazy import Lazy
from .guards import Guard, Walk
from .ownership import Holders
from .pytree import Parts, contents, kind_of

__all__ = ["Rollback"]


class Rollback:
    """The state reachable from a captured function before a call. Other Python values, such as a counter, are not
    rolled back, nor are gradients that a capture released after the function had dropped them: they are None then."""

    def __init__(self, name: str, walk: Walk, parts: Parts) -> None:
        self._name, self._holders = name, Holders(parts)
        tensors = {id(t): t for t in (*walk.tensors.values(), *parts.tensors)}.values()
        self.walk = walk
        self._before = [(t, t.uop, t._device, t.requires_grad, t.grad) for t in tensors]

    def tensors(self) -> Iterator[Lazy | None]:
        """Every tensor that this refers to, as often as it does; of gradients, those before the call."""
        for tensor, *_, grad in self._before:
            yield tensor
            yield grad

    def dropped(self) -> list[Lazy]:
        """Gradients that were replaced or set to None since, and still have their memory."""
        found = {id(grad): grad for tensor, *_, grad in self._before if grad is not None and tensor.grad is not grad}
        return [grad for grad in found.values() if not _is_overwritten(grad.uop)]

    def put_back(self) -> str:
        """Roll back everything, or nothing if memory already has other values. Return a note for the user."""
        released = {id(grad) for *_, grad in self._before if grad is not None and _is_overwritten(grad.uop)}
        changed = [uop for t, uop, *_ in self._before if t.uop is not uop and id(t) not in released]
        if any(map(_is_overwritten, changed)):
            return (
                f"jit: {self._name} had already realized some of its assignments: these remain, the others are "
                "still pending."
            )
        for tensor, uop, device, requires_grad, grad in self._before:
            if tensor.uop is not uop and id(tensor) not in released:
                tensor._put(uop)
            tensor._device, tensor.requires_grad = device, requires_grad
            tensor.grad = None if id(grad) in released else grad
        for number, kind, before, _ in [*self._holders.changed()]:
            kind.fill(self._holders.parts.holders[number], list(before), list(before.values()))
        self._restore_locations()
        kept = f", but {label!r}" if (label := Guard(self.walk).explain()) else ""
        exception = ", but not the gradients that it had dropped" if released else kept
        return f"jit: the state before this call of {self._name} is restored{exception}."

    def _restore_locations(self) -> None:
        """Roll back containers, then other locations."""
        for container, before in self.walk.containers.values():
            kind = kind_of(container)
            if kind is not None and [*map(id, contents(container, kind).values())] != [*map(id, before.values())]:
                kind.fill(container, list(before), list(before.values()))
        for location, tensor in self.walk.tensors.items():
            if location not in self.walk.owners and not location.endswith(".grad"):  # in a tuple; of a tensor
                scope = {**self.walk.scope, "before": tensor}
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
