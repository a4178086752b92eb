"""Values by index, in order, and distinct."""

from __future__ import annotations

from typing import Any, NamedTuple

from kernmill.ir import ShapeError

from ..complex_tensor import ComplexTensor
from ..tensor import Tensor
from .dtypes import Array, ordered

__all__ = [
    "argsort", "isin", "nonzero", "searchsorted", "sort", "take", "take_along_axis", "unique_all", "unique_counts",
    "unique_inverse", "unique_values",
]  # fmt: skip


class UniqueAll(NamedTuple):
    """The result of `unique_all`."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCounts(NamedTuple):
    """The result of `unique_counts`."""

    values: Any
    counts: Any


class UniqueInverse(NamedTuple):
    """The result of `unique_inverse`."""

    values: Any
    inverse_indices: Any


def take(x: Array, indices: Any, /, *, axis: int | None = None) -> Array:
    """Entries of an axis at a vector of indices."""
    own: Any = x.reshape((-1,)) if axis is None and x.ndim != 1 else x
    if not own.ndim:
        raise ShapeError("take: a 0-d array has no axis. Reshape it.")
    at = axis or 0
    key = (slice(None),) * (at % own.ndim)
    return own[(*key, indices)]  # type: ignore[no-any-return]


def take_along_axis(x: Array, indices: Any, /, *, axis: int = -1) -> Array:
    """Entries at indices along an axis, for each index of the others."""
    shape = list(x.shape)
    shape[axis] = 1
    lead = [max(a, b) for a, b in zip(shape, indices.shape, strict=True)]
    wide, full = list(lead), list(lead)
    wide[axis], full[axis] = indices.shape[axis], x.shape[axis]
    return x.expand(full).gather(axis % x.ndim, indices.expand(wide))


def nonzero(x: Array, /) -> tuple[Array, ...]:
    """The indices of values that are not 0, a vector for each axis."""
    found = (x != 0).nonzero()
    return tuple(found[:, a] for a in range(x.ndim))


def searchsorted(x1: Any, x2: Any, /, *, side: str = "left", sorter: Any = None) -> Array:
    """The insertion indices of values in a sorted vector."""
    ordered = x1 if sorter is None else x1[sorter]
    return ordered.searchsorted(x2, side=side)  # type: ignore[no-any-return]


def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Array:
    """True where a value is among others."""
    own = x1 if isinstance(x1, Tensor) else Tensor(x1)
    return own.isin(x2, invert=invert)


def sort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Values in order along an axis."""
    return ordered(x, "sort").sort(axis, descending)[0]  # type: ignore[no-any-return]


def argsort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """The indices of values in order along an axis; equal ones stay in theirs."""
    return ordered(x, "argsort").argsort(axis, descending)  # type: ignore[no-any-return]


def _distinct(x: Array) -> tuple[Any, ...]:
    """Distinct values, the index of each, those of all elements, and counts; nan is distinct from nan."""
    if not isinstance(x, ComplexTensor):
        found: tuple[Any, ...] = x.unique(True, True, True, equal_nan=False)
        return found
    import numpy as np  # complex numbers have no order that a kernel sorts by

    values, *numbers = np.unique(x.numpy(), True, True, True, equal_nan=False)
    return ComplexTensor(values), *map(Tensor, numbers)


def unique_all(x: Array, /) -> UniqueAll:
    """Distinct values, the first index of each, the value of each element, and counts."""
    return UniqueAll(*_distinct(x))


def unique_counts(x: Array, /) -> UniqueCounts:
    """Distinct values, and how often each occurs."""
    values, _, _, counts = _distinct(x)
    return UniqueCounts(values, counts)


def unique_inverse(x: Array, /) -> UniqueInverse:
    """Distinct values, and the value of each element."""
    values, _, inverse, _ = _distinct(x)
    return UniqueInverse(values, inverse)


def unique_values(x: Array, /) -> Array:
    """Distinct values."""
    return _distinct(x)[0]  # type: ignore[no-any-return]
