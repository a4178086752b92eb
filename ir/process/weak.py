"""Weak tables: an entry is removed with its object, and no Python code runs when that object is freed.

Python swallows a Ctrl-C that arrives inside a weak reference's callback or a `__del__` written in Python. So the only
callback is a list's `append`, a C function. `sweep` removes the entries later: when the next node is created, and when
memory is allocated or counted.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, Generic, TypeVar, cast

from .locks import process_lock

__all__ = ["WeakTable", "keep_until_death", "sweep", "taken"]

Key = TypeVar("Key")
Value = TypeVar("Value")


class Ref(weakref.ref[Any]):
    """A weak reference that knows its entry. The entry is removed only if it still holds this reference."""

    __slots__ = ("key",)
    key: Any
    table: dict[Any, Any]


dead: list[Ref] = []  # references whose objects are freed, and whose entries still exist
note_dead: Any = dead.append  # the callback
sweep_lock = process_lock()  # a garbage collection inside the lock may create nodes


def sweep() -> None:
    """Remove the entries of freed objects. If Ctrl-C interrupts this, the next sweep starts again."""
    if not dead:
        return
    with sweep_lock:
        found = dead[:]
        for ref in found:
            if ref.table.get(ref.key) is ref:
                del ref.table[ref.key]
        if dead[: len(found)] == found:  # otherwise a finalizer that ran in here has swept too
            del dead[: len(found)]


class _Entry(Ref):
    __slots__ = ("table", "value")
    value: Any


class WeakTable(Generic[Key, Value]):
    """A mapping by identity, whose keys are not kept alive."""

    def __init__(self) -> None:
        self._refs: dict[Any, _Entry] = {}

    def get(self, key: Key) -> Value | None:
        """The value of a key; None if it has none."""
        ref = self._refs.get(id(key))
        return ref.value if ref is not None and ref() is key else None

    def __setitem__(self, key: Key, value: Value) -> None:
        ref = _Entry(key, note_dead)
        ref.table, ref.key, ref.value = self._refs, id(key), value
        self._refs[ref.key] = ref
        sweep()

    def __contains__(self, key: Key) -> bool:
        ref = self._refs.get(id(key))
        return ref is not None and ref() is key

    def items(self) -> Iterator[tuple[Key, Value]]:
        """Return the keys that are alive, with their values, in insertion order."""
        for ref in list(self._refs.values()):
            if (key := ref()) is not None:
                yield cast("Key", key), ref.value


class _Last(weakref.ref[Any]):
    __slots__ = ("value",)
    value: Any


_waiting: set[_Last] = set()  # a freed reference cannot call its callback


def keep_until_death(thing: object, value: object, queue: deque[Any]) -> None:
    """Make `taken(queue)` return this value after the thing is freed."""
    ref = _Last(thing, queue.append)
    ref.value = value
    _waiting.add(ref)


def taken(queue: deque[Any]) -> Iterator[Any]:
    """Return the values of freed things, each once."""
    while queue:
        try:
            ref = queue.popleft()
        except IndexError:  # another thread was quicker
            return
        _waiting.discard(ref)
        yield ref.value
