"""Tensors in nested containers (pytrees): lists, tuples, dicts and dataclasses, flattened and rebuilt.

`KINDS` defines the containers of jit: list or tuple, deque, dict, dataclass of the user. Flattening a call, reading it
by straight-line code (reader.py), building results and writing to arguments all use this table.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections import deque
from collections.abc import Callable, Iterator, MappingView, Sequence
from types import AsyncGeneratorType, CoroutineType, SimpleNamespace
from typing import Any

from kernmill.ir import KernmillError

from ..lazy import Lazy
from ..size import SymbolicSize
from ..variable import Bound

__all__ = ["Kind", "Parts", "contents", "key_mark", "kind_of", "opened", "rebuild", "tree_flatten"]


class Kind:
    """A kind of container: its parts, by key, and how Python writes them."""

    part: Callable[[Any, Any], Any] = staticmethod(operator.getitem)
    text = "{}[{}]"  # of a location and a key

    def has(self, value: Any) -> bool:
        """True if a value is such a container."""
        raise NotImplementedError

    def can_change(self, value: Any) -> bool:
        """True if its parts can be replaced."""
        return True

    def mark(self, value: Any) -> Any:
        """Return what distinguishes it from containers of the same keys."""
        return type(value)

    def keys(self, value: Any) -> Sequence[Any]:
        """Return the keys of its parts, in order."""
        raise NotImplementedError

    def same_keys(self, location: str, value: Any, name: Callable[[object], str]) -> str:
        """Return Python code that tests if the container at a location, of the same class, has the keys of this one."""
        raise NotImplementedError

    def like(self, value: Any, keys: Sequence[Any], parts: list[Any]) -> Any:
        """Make a new container of the same class with other parts."""
        raise NotImplementedError

    def fill(self, value: Any, keys: Sequence[Any], parts: list[Any]) -> None:
        """Replace all parts, in place."""
        raise NotImplementedError


class _Sequence(Kind):
    def has(self, value: Any) -> bool:
        return isinstance(value, (list, tuple))

    def can_change(self, value: Any) -> bool:
        return isinstance(value, list)

    def keys(self, value: Any) -> Sequence[Any]:
        return range(len(value))

    def same_keys(self, location: str, value: Any, name: Callable[[object], str]) -> str:
        return f"len({location}) == {len(value)}"

    def like(self, value: Any, keys: Sequence[Any], parts: list[Any]) -> Any:
        kind = type(value)
        if kind is list:
            return parts
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)

    def fill(self, value: Any, keys: Sequence[Any], parts: list[Any]) -> None:
        value[:] = parts


class _Queue(_Sequence):
    """A deque. Its maximal length is part of its identity."""

    def has(self, value: Any) -> bool:
        return isinstance(value, deque)

    def can_change(self, value: Any) -> bool:
        return True

    def mark(self, value: Any) -> Any:
        return type(value), value.maxlen

    def same_keys(self, location: str, value: Any, name: Callable[[object], str]) -> str:
        return f"len({location}) == {len(value)} and {location}.maxlen == {value.maxlen}"

    def like(self, value: Any, keys: Sequence[Any], parts: list[Any]) -> Any:
        new = copy.copy(value)
        self.fill(new, keys, parts)
        return new

    def fill(self, value: Any, keys: Sequence[Any], parts: list[Any]) -> None:
        value.clear()
        value.extend(parts)


class _Mapping(Kind):
    def has(self, value: Any) -> bool:
        return isinstance(value, dict)

    def keys(self, value: Any) -> Sequence[Any]:
        return tuple(value)

    def same_keys(self, location: str, value: Any, name: Callable[[object], str]) -> str:
        if all(type(key) is str for key in value):
            return f"tuple({location}) == {name(tuple(value))}"
        return f"[*map({name(key_mark)}, {location})] == {name([key_mark(key) for key in value])}"

    def like(self, value: Any, keys: Sequence[Any], parts: list[Any]) -> Any:
        new = dict(zip(keys, parts, strict=True))
        if type(value) is dict:
            return new
        other = copy.copy(value)  # a defaultdict keeps its factory
        self.fill(other, keys, parts)
        return other

    def fill(self, value: Any, keys: Sequence[Any], parts: list[Any]) -> None:
        value.clear()
        value.update(zip(keys, parts, strict=True))


class _Record(Kind):
    """A dataclass of the user's, or a namespace: its attributes count, not its identity."""

    part = staticmethod(getattr)
    text = "{}.{}"

    def has(self, value: Any) -> bool:
        if isinstance(value, SimpleNamespace):
            return True
        is_ours = type(value).__module__.startswith("kernmill.") and not getattr(value, "is_pytree", False)
        return dataclasses.is_dataclass(value) and not isinstance(value, type) and not is_ours

    def keys(self, value: Any) -> Sequence[Any]:
        fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
        names = [f.name for f in fields if hasattr(value, f.name)]
        return tuple(dict.fromkeys([*names, *getattr(value, "__dict__", ())]))

    def same_keys(self, location: str, value: Any, name: Callable[[object], str]) -> str:
        return f"len({location}.__dict__) == {len(value.__dict__)}" if hasattr(value, "__dict__") else "True"

    def like(self, value: Any, keys: Sequence[Any], parts: list[Any]) -> Any:
        new = copy.copy(value)
        self.fill(new, keys, parts)
        return new

    def fill(self, value: Any, keys: Sequence[Any], parts: list[Any]) -> None:
        for key in set(getattr(value, "__dict__", self.keys(value))).difference(keys):
            object.__delattr__(value, key)
        for key, part in zip(keys, parts, strict=True):
            if getattr(value, key, self) is not part:
                object.__setattr__(value, key, part)


_LATER = (CoroutineType, AsyncGeneratorType, MappingView)
# their iterators have no other state; those of a user's class, and files, may have
_OF_PYTHON = ("builtins", "itertools")
KINDS = (_Sequence(), _Mapping(), _Record(), _Queue())


def kind_of(value: Any) -> Kind | None:
    """Return the kind of container of a value; None: it is not a container."""
    return next((kind for kind in KINDS if kind.has(value)), None)


def contents(value: Any, kind: Kind) -> dict[Any, Any]:
    """Return the parts of a container by key."""
    return {key: kind.part(value, key) for key in kind.keys(value)}


class Parts:
    """The findings in a value: its tensors, its mutable containers, sizes, and other objects."""

    def __init__(self) -> None:
        self.tensors: list[Lazy] = []
        self.holders: list[Any] = []  # each once
        self.sizes: list[SymbolicSize] = []
        self.bounds: list[Bound] = []
        self.objects: list[Any] = []
        self._numbers: dict[int, int] = {}

    def add_holder(self, holder: Any) -> None:
        """Note a container that can change."""
        self._numbers[id(holder)] = len(self.holders)
        self.holders.append(holder)

    def number_of(self, holder: Any) -> int | None:
        """Return the index of a container among the holders."""
        return self._numbers.get(id(holder))


class _ByValue:
    """A value that cannot be hashed, compared by ==."""

    def __init__(self, value: object) -> None:
        self.value = copy.copy(value)

    def __hash__(self) -> int:
        return hash(type(self.value))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _ByValue) or type(other.value) is not type(self.value):
            return False
        try:
            return bool(self.value == other.value)
        except Exception:  # tensors in it have no answer
            return False


class _Itself:
    """An object of a class whose `==` may not see all of it."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.value is self.value


def key_mark(key: Any) -> Any:
    """Return what distinguishes a key from others: 1 is not True, 0.0 is not -0.0."""
    if type(key) is str:
        return key
    return type(key), key.hex() if isinstance(key, float) else key


def tree_flatten(value: Any, parts: Parts) -> Any:
    """Return the structure of a value without its tensors, hashable; its leaves go to `parts`."""
    if isinstance(value, Lazy):
        parts.tensors.append(value)
        return Lazy
    of_type = type(value)
    if of_type in (int, bool, str, bytes) or value is None:
        return of_type, value
    if of_type is Bound:
        parts.bounds.append(value)
        return of_type, value.variable.uop
    if isinstance(value, float):
        return of_type, value.hex()  # -0.0 is not 0.0 here, and nan is nan
    if of_type is SymbolicSize:
        parts.sizes.append(value)
        return of_type, value.uop
    kind = kind_of(value)
    if kind is not None:
        if kind.can_change(value):
            if (number := parts.number_of(value)) is not None:
                return "again", number
            parts.add_holder(value)
        return (
            kind.mark(value),
            *[(key_mark(key), tree_flatten(kind.part(value, key), parts)) for key in kind.keys(value)],
        )
    if of_type.__module__ == "numpy" and hasattr(value, "__array_interface__") and of_type.__name__ == "ndarray":
        raise KernmillError(
            f"jit: an argument is a NumPy array of shape {value.shape}. "
            "A replay would repeat its values; wrap it in Tensor(..)."
        )
    if isinstance(value, _LATER) or (of_type.__module__ in _OF_PYTHON and isinstance(value, Iterator)):
        raise KernmillError(f"jit: a function cannot return or take a {of_type.__name__}. Use a list of tensors.")
    parts.objects.append(value)
    try:
        hash(value)
    except TypeError:
        return _ByValue(value)
    return of_type, _Itself(value) if hasattr(value, "__dict__") else value


def rebuild(value: Any, number_of: Callable[[Any], int | None]) -> Callable[[Any], Any]:
    """Return a function that builds such a value from a list.

    `number_of` returns the list index of a tensor, a symbolic size, or a mutable container; None for a container that
    is rebuilt.
    """
    kind = kind_of(value)
    if isinstance(value, (Lazy, SymbolicSize)) or (kind is not None and kind.can_change(value)):
        which = number_of(value)
        if which is not None:
            return operator.itemgetter(which)
    if kind is None:
        return lambda _made: value
    keys = kind.keys(value)
    parts = [rebuild(kind.part(value, key), number_of) for key in keys]
    return lambda made: kind.like(value, keys, [part(made) for part in parts])


def opened(value: Any) -> Any:
    """Return an argument with symbolic sizes instead of bound variables; itself if it has none.

    Raises:
        KernmillError: a bound variable in a mutable container, which cannot be replaced by a copy.
    """
    if isinstance(value, Bound):
        return SymbolicSize(value.variable.uop)
    kind = kind_of(value)
    if kind is None:
        return value
    if kind.can_change(value):
        found = Parts()
        tree_flatten(value, found)
        if not found.bounds:
            return value
        raise KernmillError(
            f"jit: a {type(value).__name__} contains a bound variable. Bound variables must be arguments or in "
            "tuples: changes to a copy of the container would be lost."
        )
    keys = kind.keys(value)
    old = [kind.part(value, key) for key in keys]
    new = [opened(part) for part in old]
    return value if all(map(operator.is_, old, new)) else kind.like(value, keys, new)
