"""Trees: tensors in dicts, lists and tuples, in order, and the same form around other tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kernmill.ir import DTypeError, ShapeError, show_shape

from ..tensor import Tensor

__all__ = ["pair_of", "parts_of", "replaced", "same_form", "tensors_in"]


def tensors_in(value: Any, call: str) -> list[Tensor]:
    """The tensors of a value, in order.

    Raises:
        DTypeError: there is something else.
    """
    found = list(parts_of(value))
    for part in found:
        if not isinstance(part, Tensor):
            raise DTypeError(
                f"{call}: a {type(part).__name__} has no gradient. Give tensors, in dicts, lists and tuples."
            )
    return found


def parts_of(value: Any) -> Iterator[Any]:
    """All that is in dicts, lists and tuples, in order."""
    if isinstance(value, dict):
        for part in value.values():
            yield from parts_of(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from parts_of(part)
    else:
        yield value


def replaced(value: Any, new: Iterator[Any]) -> Any:
    """The value with the next of `new` for each part."""
    if isinstance(value, dict):
        return {key: replaced(part, new) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(replaced(part, new) for part in value))
    if isinstance(value, (list, tuple)):
        parts = [replaced(part, new) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    return next(new)


def pair_of(made: Any) -> tuple[Any, Any]:
    """Return what the function of a scan returns.

    Raises:
        ShapeError: it is not a pair.
    """
    if not isinstance(made, tuple) or len(made) != 2:
        raise ShapeError(
            f"scan: the function returns a {type(made).__name__}. Return a pair: the carry, and y or None."
        )
    return made


def same_form(what: str, before: Any, after: Any) -> None:
    """Compare forms, shapes and dtypes.

    Raises:
        ShapeError: they differ.
    """
    if _shape_of(before) != _shape_of(after):
        raise ShapeError(
            f"{what} must keep form, shape and dtype: {_shape_of(before)} became {_shape_of(after)}. Cast or reshape "
            "it."
        )


def _shape_of(value: Any) -> Any:
    if isinstance(value, Tensor):
        return f"{value.dtype.name} {show_shape(value.uop.shape)}"
    if isinstance(value, dict):
        return {key: _shape_of(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shape_of(part) for part in value]
    return type(value).__name__
