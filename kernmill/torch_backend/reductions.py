"""Reductions, scans, and the operators that sort."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from kernmill.ir import dtypes

from ..tensor import Tensor
from .table import OPERATORS, aten, dtype_of


def _axes(x: Tensor, axes: Any) -> tuple[int, ...]:
    if axes is None or (not isinstance(axes, int) and not len(axes)):
        return tuple(range(x.ndim))
    return (axes % max(1, x.ndim),) if isinstance(axes, int) else tuple(a % max(1, x.ndim) for a in axes)


def _over_axes(name: str) -> Callable[..., Tensor]:
    method = getattr(Tensor, name)

    def run(x: Tensor, axes: Any = None, keepdim: bool = False, dtype: Any = None, **_: Any) -> Tensor:
        kind = None if dtype is None else dtype_of(dtype)
        x = x if kind is None else x.cast(kind)
        found: Tensor = method(x, axis=_axes(x, axes), keepdim=keepdim) if x.ndim else method(x)
        return found

    return run


for _name, _kinds in {
    "sum": ("default", "dim_IntList"), "mean": ("default", "dim"), "amax": ("default",), "amin": ("default",),
    "any": ("default", "dim", "dims"), "all": ("default", "dim", "dims"), "prod": ("default", "dim_int"),
}.items():  # fmt: skip
    for _kind in _kinds:
        OPERATORS[f"aten.{_name}.{_kind}"] = _over_axes(_name)
OPERATORS["aten.max.default"], OPERATORS["aten.min.default"] = _over_axes("amax"), _over_axes("amin")


@aten("max.dim")
def max_dim(x: Tensor, axis: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Maxima of an axis, and their indices."""
    return (x.max(axis, keepdim), x.argmax(axis, keepdim)) if x.ndim else (x, Tensor.full((), 0, dtype=dtypes.int64))


@aten("min.dim")
def min_dim(x: Tensor, axis: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Minima of an axis, and their indices."""
    return (x.min(axis, keepdim), x.argmin(axis, keepdim)) if x.ndim else (x, Tensor.full((), 0, dtype=dtypes.int64))


@aten("argmax.default")
def argmax(x: Tensor, axis: int | None = None, keepdim: bool = False) -> Tensor:
    """The index of the first maximum."""
    return x.flatten().argmax(0) if axis is None else x.argmax(axis, keepdim)


@aten("argmin.default")
def argmin(x: Tensor, axis: int | None = None, keepdim: bool = False) -> Tensor:
    """The index of the first minimum."""
    return x.flatten().argmin(0) if axis is None else x.argmin(axis, keepdim)


@aten("var.correction")
def var(x: Tensor, axes: Any = None, correction: float | None = None, keepdim: bool = False) -> Tensor:
    """The variance, divided by the count minus a correction."""
    return var_mean(x, axes, correction, keepdim)[0]


@aten("var_mean.correction")
def var_mean(
    x: Tensor, axes: Any = None, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """The variance and the mean."""
    chosen = _axes(x, axes)
    mean = x.mean(axis=chosen, keepdim=True)
    count = math.prod(x.shape[a] for a in chosen) - (1 if correction is None else correction)
    found = ((x - mean) * (x - mean)).sum(axis=chosen, keepdim=True) / max(0, count)
    kept = [n for i, n in enumerate(x.shape) if i not in chosen]
    return (found, mean) if keepdim else (found.reshape(kept), mean.reshape(kept))


@aten("linalg_vector_norm.default")
def vector_norm(x: Tensor, order: float = 2, axes: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """The norm over axes."""
    chosen, x = _axes(x, axes), x.abs()
    if order == math.inf:
        return x.amax(axis=chosen, keepdim=keepdim)
    if order == 2:
        return (x * x).sum(axis=chosen, keepdim=keepdim).sqrt()
    return (x**order).sum(axis=chosen, keepdim=keepdim) ** (1 / order)


@aten("_softmax.default", "softmax.int")
def softmax(x: Tensor, axis: int, half_to_float: Any = False) -> Tensor:
    """Softmax over an axis."""
    return (x.float() if half_to_float is True else x).softmax(axis)


@aten("_log_softmax.default", "log_softmax.int")
def log_softmax(x: Tensor, axis: int, half_to_float: Any = False) -> Tensor:
    """The logarithm of softmax."""
    return (x.float() if half_to_float is True else x).log_softmax(axis)


@aten("logsumexp.default")
def logsumexp(x: Tensor, axes: Sequence[int], keepdim: bool = False) -> Tensor:
    """The logarithm of the sum of exponentials."""
    return x.logsumexp(_axes(x, axes), keepdim)


@aten("cumsum.default")
def cumsum(x: Tensor, axis: int, dtype: Any = None) -> Tensor:
    """Prefix sums."""
    return x.cumsum(axis) if x.ndim else x


@aten("cumprod.default")
def cumprod(x: Tensor, axis: int, dtype: Any = None) -> Tensor:
    """Prefix products."""
    return x.cumprod(axis) if x.ndim else x


@aten("sort.default", "sort.stable")
def sort(x: Tensor, axis: int = -1, descending: bool = False, stable: Any = None) -> tuple[Tensor, Tensor]:
    """Sorted elements, and their indices."""
    found = x.sort(axis, descending)
    return found[0], found[1]


OPERATORS["aten.sort.stable"] = lambda x, stable=None, dim=-1, descending=False: sort(x, dim, descending)


@aten("topk.default")
def topk(x: Tensor, k: int, axis: int = -1, largest: bool = True, is_sorted: bool = True) -> tuple[Tensor, Tensor]:
    """The k largest elements, and their indices."""
    found = x.topk(k, axis, largest)
    return found[0], found[1]
