"""Records: classes of named fields, as `dataclasses` makes them, in a quarter of the time.

A data class compiles up to seven functions when its module is imported: that was a third of what importing kernmill
took. Here only `__init__` is compiled; the rest is shared.
"""

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

    A `frozen` record can be hashed and not be changed. Without `eq` a record is equal to itself only.
    """

    def make(cls: type[T]) -> type[T]:
        names = tuple(cls.__annotations__)
        body = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__", *names)}
        scope: dict[str, Any] = {f"default_{name}": vars(cls)[name] for name in names if name in vars(cls)}
        exec(_init(names, scope, frozen), scope)
        body |= {"__slots__": names, "__match_args__": names, "__init__": scope["__init__"], "__repr__": _repr}
        if frozen:
            body |= {"__setattr__": _refuse, "__delattr__": _refuse}
        if eq:
            values = attrgetter(*names)
            body["__eq__"] = lambda self, other: (
                values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented
            )
            body["__hash__"] = (lambda self: hash(values(self))) if frozen else None
        made = cast("type[T]", type(cls)(cls.__name__, cls.__bases__, body))  # type: ignore[misc]
        scope |= {f"set_{name}": vars(made)[name].__set__ for name in names}
        return made

    return make


def _init(names: tuple[str, ...], scope: dict[str, Any], frozen: bool) -> str:
    parameters, lines = ["self"], []
    for name in names:
        default, value = f"default_{name}", name
        parameters.append(f"{name}={default}" if default in scope else name)
        if isinstance(scope.get(default), partial):
            value = f"{default}() if {name} is {default} else {name}"
        lines.append(f"set_{name}(self, {value})" if frozen else f"self.{name} = {value}")
    return f"def __init__({', '.join(parameters)}):\n " + "\n ".join(lines)


def _repr(self: Any) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"


def _refuse(self: Any, name: str, *_: Any) -> None:
    raise AttributeError(f"{name} of a {type(self).__qualname__} cannot be changed: it is frozen. Use replace.")


def replace(of: T, **changes: Any) -> T:
    """A record like this one, with other values for some fields."""
    values: dict[str, Any] = {name: getattr(of, name) for name in of.__slots__}  # type: ignore[attr-defined]
    return type(of)(**values | changes)
