"""Reductions and running sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernmill.ir import DType, DTypeError, dtypes

from ..complex_tensor import ComplexTensor
from .creation import asarray
from .dtypes import Array, astype, ordered
from .manipulation import concat

__all__ = [
    "all", "any", "argmax", "argmin", "count_nonzero", "cumulative_prod", "cumulative_sum", "diff", "max", "mean",
    "min", "prod", "std", "sum", "var",
]  # fmt: skip

Axes = int | Sequence[int] | None


def wide(x: Any, dtype: DType | None) -> Any:
    """An array in the dtype of its sums: unsigned ints in uint64."""
    if dtype is not None:
        return astype(x, dtype, copy=False)
    return x.cast(dtypes.uint64) if x.dtype.kind == "uint" else x


def sum(x: Array, /, *, axis: Axes = None, dtype: DType | None = None, keepdims: bool = False) -> Array:
    """Sums along axes."""
    result = wide(x, dtype).sum(axis, keepdims)
    return result if dtype is None else astype(result, dtype, copy=False)


def prod(x: Array, /, *, axis: Axes = None, dtype: DType | None = None, keepdims: bool = False) -> Array:
    """Products along axes."""
    own: Any = wide(x, dtype)
    if isinstance(own, ComplexTensor) and not (axis is None or isinstance(axis, int)):
        for a in sorted((a % own.ndim for a in axis), reverse=True):
            own = own.prod(a, True)
        gone = sorted((a % own.ndim for a in axis), reverse=True)
        for a in () if keepdims else gone:
            own = own.squeeze(a)
        return own  # type: ignore[no-any-return]
    any_axis: Any = axis
    result = own.prod(any_axis, keepdims)
    return result if dtype is None else astype(result, dtype, copy=False)


def mean(x: Array, /, *, axis: Axes = None, keepdims: bool = False) -> Array:
    """Means along axes."""
    return x.mean(axis, keepdims)


def var(x: Array, /, *, axis: Axes = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Variances along axes."""
    return x.var(axis, keepdims, correction=correction)


def std(x: Array, /, *, axis: Axes = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Standard deviations along axes."""
    return x.std(axis, keepdims, correction=correction)


def max(x: Any, /, *, axis: Axes = None, keepdims: bool = False) -> Array:
    """The largest values along axes."""
    return ordered(x, "max").max(axis, keepdims)  # type: ignore[no-any-return]


def min(x: Any, /, *, axis: Axes = None, keepdims: bool = False) -> Array:
    """The smallest values along axes."""
    return ordered(x, "min").min(axis, keepdims)  # type: ignore[no-any-return]


def argmax(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """The index of the largest value."""
    return ordered(x, "argmax").argmax(axis, keepdims)  # type: ignore[no-any-return]


def argmin(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """The index of the smallest value."""
    return ordered(x, "argmin").argmin(axis, keepdims)  # type: ignore[no-any-return]


def _truth(x: Array) -> Any:
    return (x != 0) if isinstance(x, ComplexTensor) else x


def all(x: Array, /, *, axis: Axes = None, keepdims: bool = False) -> Array:
    """True if no value is 0."""
    return _truth(x).all(axis, keepdims)  # type: ignore[no-any-return]


def any(x: Array, /, *, axis: Axes = None, keepdims: bool = False) -> Array:
    """True if one value is not 0."""
    return _truth(x).any(axis, keepdims)  # type: ignore[no-any-return]


def count_nonzero(x: Array, /, *, axis: Axes = None, keepdims: bool = False) -> Array:
    """How many values are not 0."""
    return (x != 0).sum(axis, keepdims)


def _running(x: Any, call: str, axis: int | None, dtype: DType | None, include_initial: bool) -> Any:
    if axis is None:
        if x.ndim != 1:
            raise DTypeError(f"cumulative_{call}: an array of {x.ndim} axes. Give the axis.")
        axis = 0
    own = wide(x, dtype)
    if isinstance(own, ComplexTensor):
        if call == "prod":
            raise DTypeError("cumulative_prod: complex arrays are not supported. Use exp of a cumulative_sum of log.")
        return ComplexTensor(
            own.real.cumsum(axis, include_initial=include_initial),
            own.imag.cumsum(axis, include_initial=include_initial),
        )
    if own.dtype.kind in ("bool", "int") and dtype is None:
        own = own.cast(dtypes.int64)
    return getattr(own, f"cum{call}")(axis, include_initial=include_initial)


def cumulative_sum(x: Array, /, *, axis: int | None = None, dtype: DType | None = None,
                   include_initial: bool = False) -> Array:  # fmt: skip
    """Running sums along an axis."""
    return _running(x, "sum", axis, dtype, include_initial)  # type: ignore[no-any-return]


def cumulative_prod(x: Array, /, *, axis: int | None = None, dtype: DType | None = None,
                    include_initial: bool = False) -> Array:  # fmt: skip
    """Running products along an axis."""
    return _running(x, "prod", axis, dtype, include_initial)  # type: ignore[no-any-return]


def diff(
    x: Array, /, *, axis: int = -1, n: int = 1, prepend: Array | None = None, append: Array | None = None
) -> Array:
    """Differences of neighbours along an axis, n times."""
    parts = [asarray(p) for p in (prepend, x, append) if p is not None]
    whole = concat(parts, axis=axis) if len(parts) > 1 else x
    return whole.diff(n, axis)
