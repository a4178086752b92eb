"""Tensors in nested containers: lists, tuples, dicts and dataclasses taken apart into leaves and put together again."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kernmill.ir import KernmillError

from .lazy import Lazy
from .variable import Bound

__all__ = ["Leaf", "assign_at", "is_record", "opened", "rebuild", "take_apart"]


class Leaf(NamedTuple):
    """A tensor, and where it stands: `holder[key]`, or the attribute `key` of `holder`."""

    tensor: Lazy
    holder: Any
    key: Any


class _ByValue:
    """A value that cannot be hashed, compared by ==."""

    def __init__(self, value: object) -> None:
        self.value = copy.copy(value)

    def __hash__(self) -> int:
        return hash(type(self.value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByValue) and type(other.value) is type(self.value) and bool(self.value == other.value)


def is_record(value: object) -> bool:
    """A dataclass of the user's: its fields count, not its identity."""
    is_ours = type(value).__module__.startswith("kernmill.")
    return dataclasses.is_dataclass(value) and not isinstance(value, type) and not is_ours


def take_apart(value: Any, leaves: list[Leaf], objects: list[Any], holder: Any = None, key: Any = None) -> Any:
    """What a value looks like without its tensors, hashable; its tensors go to `leaves`, other objects to `objects`."""
    if isinstance(value, Lazy):
        leaves.append(Leaf(value, holder, key))
        return Lazy
    kind = type(value)
    if kind in (int, bool, str, bytes) or value is None:
        return kind, value
    if kind is Bound:
        objects.append(value)
        return kind, value.variable.uop
    if isinstance(value, float):
        return kind, value.hex()  # -0.0 is not 0.0 here, and nan is nan
    if isinstance(value, (list, tuple)):
        return (kind, *[take_apart(item, leaves, objects, value, i) for i, item in enumerate(value)])
    if isinstance(value, dict):
        return (kind, *[(k, take_apart(item, leaves, objects, value, k)) for k, item in value.items()])
    if is_record(value):
        names = [f.name for f in dataclasses.fields(value)]
        return (kind, *[take_apart(getattr(value, name), leaves, objects, value, name) for name in names])
    if kind.__module__ == "numpy" and hasattr(value, "__array_interface__") and kind.__name__ == "ndarray":
        raise KernmillError(
            f"jit: an argument is a NumPy array of shape {value.shape}. "
            "A replay would repeat its values; wrap it in Tensor(..)."
        )
    objects.append(value)
    try:
        hash(value)
    except TypeError:
        return _ByValue(value)
    return kind, value


def rebuild(value: Any, of_tensor: Callable[[Lazy], Any]) -> Callable[[Any], Any]:
    """A function that makes such a value from a list; `of_tensor` says where in the list each tensor stands."""
    if isinstance(value, Lazy):
        which = of_tensor(value)
        return lambda made: made[which]
    if isinstance(value, dict):
        keys, parts = list(value), [rebuild(item, of_tensor) for item in value.values()]
        return lambda made: _like(value, {k: part(made) for k, part in zip(keys, parts, strict=True)})
    if isinstance(value, (list, tuple)):
        parts = [rebuild(item, of_tensor) for item in value]
        return lambda made: _like(value, [part(made) for part in parts])
    if is_record(value):
        fields = [(f.name, rebuild(getattr(value, f.name), of_tensor)) for f in dataclasses.fields(value)]
        return lambda made: _record(value, ((name, part(made)) for name, part in fields))
    return lambda _made: value


def _like(value: Any, items: Any) -> Any:
    kind = type(value)
    if kind in (list, dict):
        return items
    return kind(*items) if hasattr(kind, "_fields") else kind(items)


def _record(value: Any, fields: Iterable[tuple[str, Any]]) -> Any:
    new = copy.copy(value)
    for name, item in fields:
        object.__setattr__(new, name, item)
    return new


def assign_at(holder: Any, key: Any, value: Any) -> None:
    """`holder[key] = value`, or the attribute."""
    if isinstance(holder, (list, dict)):
        holder[key] = value
    else:
        object.__setattr__(holder, key, value)


def opened(value: Any) -> Any:
    """An argument with symbolic sizes in place of bound variables; itself where there are none.

    Raises:
        KernmillError: a bound variable in a container that may not be copied.
    """
    if isinstance(value, Bound):
        return value.variable.uop
    if isinstance(value, (list, tuple, dict)):
        parts = list(value.values()) if isinstance(value, dict) else list(value)
        new = [opened(part) for part in parts]
        if all(a is b for a, b in zip(parts, new, strict=True)):
            return value
        if isinstance(value, tuple):
            return type(value)(*new) if hasattr(value, "_fields") else tuple(new)
        if type(value) in (list, dict) and not any(isinstance(part, (Lazy, list, dict)) for part in parts):
            return new if isinstance(value, list) else dict(zip(value, new, strict=True))
        raise KernmillError(
            f"jit: a {type(value).__name__} holds a bound variable beside tensors or containers. Give variables as "
            "arguments of their own, or in a list of nothing else."
        )
    if is_record(value) and any(
        opened(getattr(value, f.name)) is not getattr(value, f.name) for f in dataclasses.fields(value)
    ):
        raise KernmillError(
            f"jit: a {type(value).__name__} holds a bound variable. Give variables as arguments of their own."
        )
    return value
