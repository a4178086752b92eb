"""Reads and writes at indices."""

from __future__ import annotations

import math

from kernmill.ir import dtypes

from ...methods.elementwise import where
from ...tensor import Tensor
from ..table import operator
from ..values import Host, Known, Value, shape_of, tensor_of
from .shapes import moved


def _wrapped(index: Tensor, size: int) -> Tensor:
    index = index.cast(dtypes.int64)
    return where(index.lt(0), index + size, index)


@operator("Gather")
def gather(x: Value, index: Value, *, axis: int = 0) -> Value:
    own = shape_of(x)
    axis %= len(own)
    if isinstance(index, Known) and index.array.ndim == 0:
        at = (*[slice(None)] * axis, int(index.array))
        return moved(x, lambda t: t[at])
    indices = _wrapped(tensor_of(index), own[axis])
    return moved(x, lambda t: t[(*[slice(None)] * axis, indices)])


@operator("GatherElements")
def gather_elements(x: Tensor, index: Tensor, *, axis: int = 0) -> Tensor:
    axis %= x.ndim
    return x.gather(axis, _wrapped(index, x.shape[axis]))


@operator("GatherND")
def gather_nd(x: Tensor, index: Tensor, *, batch_dims: int = 0) -> Tensor:
    depth = index.shape[-1]
    return x[_advanced(x, index, batch_dims, depth)]


def _advanced(x: Tensor, index: Tensor, batch: int, depth: int) -> tuple[Tensor, ...]:
    """An index tensor for each of the first axes, after those of the batch."""
    columns = [_wrapped(index[..., i], x.shape[batch + i]) for i in range(depth)]
    rank = index.ndim - 1
    front = [Tensor.arange(x.shape[i]).reshape(*[-1 if a == i else 1 for a in range(rank)]) for i in range(batch)]
    return (*front, *columns)


@operator("ScatterElements", "Scatter")
def scatter_elements(x: Tensor, index: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none") -> Tensor:
    axis %= x.ndim
    return _scattered(x, axis, _wrapped(index, x.shape[axis]), updates, reduction)


_KINDS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _scattered(x: Tensor, axis: int, index: Tensor, updates: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return x.scatter(axis, index, updates)
    return x.scatter_reduce(axis, index, updates, _KINDS[reduction])


@operator("ScatterND")
def scatter_nd(x: Tensor, index: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    depth = index.shape[-1]
    flat = Tensor([0], dtype=dtypes.int64)
    for i in range(depth):
        flat = flat * x.shape[i] + _wrapped(index[..., i], x.shape[i])
    rows, inner = math.prod(x.shape[:depth]), math.prod(x.shape[depth:])
    rows_of = flat.reshape(-1, 1).expand(-1, inner) if depth else flat.reshape(1, 1).expand(1, inner)
    out = _scattered(x.reshape(rows, inner), 0, rows_of, updates.reshape(rows_of.shape[0], inner), reduction)
    return out.reshape(x.shape)


@operator("TensorScatter")
def tensor_scatter(
    past: Tensor, update: Tensor, starts: Tensor | None = None, *, axis: int = -2, mode: str = "linear"
) -> Tensor:
    axis %= past.ndim
    size, count = past.shape[axis], update.shape[axis]
    first = Tensor.zeros(past.shape[0], dtype=dtypes.int64) if starts is None else starts.cast(dtypes.int64)
    positions = first.reshape(-1, 1) + Tensor.arange(count)
    positions = positions.remainder(size) if mode == "circular" else positions
    index = positions.reshape(-1, *[count if a == axis else 1 for a in range(1, past.ndim)])
    return past.scatter(axis, index.expand(*update.shape), update)


@operator("OneHot")
def one_hot(index: Tensor, depth: Host, values: Tensor, *, axis: int = -1) -> Tensor:
    size = int(depth.item())
    at = axis + index.ndim + 1 if axis < 0 else axis
    own = index.cast(dtypes.int64)
    own = where(own.lt(0), own + size, own).unsqueeze(at)
    hot = own.eq(Tensor.arange(size).reshape(*[size if a == at else 1 for a in range(index.ndim + 1)]))
    return where(hot, values[1], values[0])


@operator("TopK")
def top_k(
    x: Tensor, count: Host = None, *, k: int | None = None, axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[Tensor, Tensor]:
    size = int(count.item()) if count is not None else int(k or 0)
    values, indices = x.topk(size, axis, bool(largest))
    return values, indices.cast(dtypes.int64)
