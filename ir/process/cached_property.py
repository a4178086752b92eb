"""class cached_property: an attribute that is computed at its first use.

Tests: tests/ir/process/test_cached_property.py.
That of functools takes a lock for all instances in Python 3.11. A child that is forked while another thread computes
one waits for that lock for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

__all__ = ["cached_property"]

T = TypeVar("T")


class cached_property(Generic[T]):
    """A method as an attribute, computed at its first use; two threads may both compute it."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.func = function
        self.name = function.__name__
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> cached_property[T]: ...

    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...

    def __get__(self, instance: object | None, owner: type | None = None) -> cached_property[T] | T:
        if instance is None:
            return self
        value = instance.__dict__[self.name] = self.func(instance)
        return value
