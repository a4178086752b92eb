"""Operators that move elements: views, joins, indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kernmill.ir import dtypes

from ..methods.elementwise import where
from ..methods.movement import cat as joined
from ..methods.movement import stack as stacked
from ..tensor import Tensor
from .table import aten


@aten("view.default", "reshape.default", "_unsafe_view.default", "view_copy.default", "_reshape_copy.default")
def view(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The same elements in another shape."""
    return x.reshape(tuple(shape))


@aten("permute.default")
def permute(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Axes in another order."""
    return x.permute(tuple(axes))


@aten("transpose.int")
def transpose(x: Tensor, a: int, b: int) -> Tensor:
    """Exchange two axes."""
    return x.transpose(a, b)


@aten("t.default")
def t(x: Tensor) -> Tensor:
    """A matrix transposed."""
    return x.transpose(0, 1) if x.ndim == 2 else x


@aten("expand.default")
def expand(x: Tensor, shape: Sequence[int], implicit: bool = False) -> Tensor:
    """Repeat axes of size 1; -1 keeps a size."""
    more = len(shape) - x.ndim
    sizes = [x.shape[i - more] if n == -1 else n for i, n in enumerate(shape)]
    return x.reshape((*[1] * more, *x.shape)).expand(tuple(sizes))


@aten("squeeze.dim", "squeeze.dims", "squeeze.default")
def squeeze(x: Tensor, axes: Any = None) -> Tensor:
    """Leave out axes of size 1."""
    every = range(x.ndim) if axes is None else [axes] if isinstance(axes, int) else axes
    out = {a % max(1, x.ndim) for a in every}
    return x.reshape(tuple(n for i, n in enumerate(x.shape) if i not in out or n != 1))


@aten("unsqueeze.default")
def unsqueeze(x: Tensor, axis: int) -> Tensor:
    """A new axis of size 1."""
    return x.unsqueeze(axis)


def _along(x: Tensor, axis: int, index: Any) -> tuple[Any, ...]:
    return (*[slice(None)] * (axis % x.ndim), index)


@aten("select.int")
def select(x: Tensor, axis: int, index: int) -> Tensor:
    """One entry of an axis."""
    return x[_along(x, axis, index)]


@aten("slice.Tensor")
def slice_(x: Tensor, axis: int = 0, start: int | None = None, stop: int | None = None, step: int = 1) -> Tensor:
    """Entries of an axis."""
    return x[_along(x, axis, slice(start, stop, step))]


@aten("select_scatter.default")
def select_scatter(x: Tensor, source: Tensor, axis: int, index: int) -> Tensor:
    """x with one entry of an axis replaced."""
    positions = Tensor.arange(x.shape[axis]).reshape(-1, *[1] * (x.ndim - axis % x.ndim - 1))
    return where(positions.eq(index % x.shape[axis]), source.unsqueeze(axis), x)


@aten("slice_scatter.default")
def slice_scatter(
    x: Tensor, source: Tensor, axis: int = 0, start: int | None = None, stop: int | None = None, step: int = 1
) -> Tensor:
    """x with some entries of an axis replaced."""
    axis %= x.ndim
    low, high, step = slice(start, stop, step).indices(x.shape[axis])
    if step == 1:
        return joined(
            [x[_along(x, axis, slice(0, low))], source, x[_along(x, axis, slice(max(low, high), None))]], axis
        )
    copy = x.clone()
    copy[_along(x, axis, slice(low, high, step))] = source
    return copy


@aten("cat.default")
def cat(parts: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors one after the other; PyTorch leaves out empty ones without axes."""
    return joined([p for p in parts if p.shape != (0,)] or list(parts[:1]), axis)


@aten("stack.default")
def stack(parts: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors along a new axis."""
    return stacked(list(parts), axis)


@aten("split_with_sizes.default")
def split_with_sizes(x: Tensor, sizes: Sequence[int], axis: int = 0) -> list[Tensor]:
    """Parts of given sizes."""
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [x[_along(x, axis, slice(end - size, end))] for size, end in zip(sizes, ends, strict=True)]


@aten("split.Tensor")
def split(x: Tensor, size: int, axis: int = 0) -> list[Tensor]:
    """Parts of one size."""
    return [x[_along(x, axis, slice(i, i + size))] for i in range(0, x.shape[axis], size)]


@aten("unbind.int")
def unbind(x: Tensor, axis: int = 0) -> list[Tensor]:
    """All entries of an axis."""
    return [select(x, axis, i) for i in range(x.shape[axis])]


@aten("repeat.default")
def repeat(x: Tensor, counts: Sequence[int]) -> Tensor:
    """Copies along axes."""
    return x.repeat(*counts) if x.ndim else x.expand(tuple(counts))


@aten("flip.default")
def flip(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Axes in reverse."""
    return x.flip(*axes) if axes else x


@aten("roll.default")
def roll(x: Tensor, shifts: Sequence[int], axes: Sequence[int] = ()) -> Tensor:
    """Elements shifted along axes, or in the flat tensor."""
    return x.roll(tuple(shifts), tuple(axes)) if axes else x.flatten().roll(tuple(shifts), (0,)).reshape(x.shape)


@aten("diagonal.default", "diagonal_copy.default")
def diagonal(x: Tensor, offset: int = 0, a: int = 0, b: int = 1) -> Tensor:
    """Diagonals of matrices, as the last axis."""
    return x.diagonal(offset, a, b)


def _paddings(x: Tensor, pad: Sequence[int]) -> list[tuple[int, int]]:
    found = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)][::-1]
    return [(0, 0)] * (x.ndim - len(found)) + found


@aten("constant_pad_nd.default")
def constant_pad(x: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    """Padding before and after the last axes; a negative one leaves elements out."""
    pairs = _paddings(x, pad)
    kept = x.shrink([(max(0, -a), n - max(0, -b)) for n, (a, b) in zip(x.shape, pairs, strict=True)])
    return kept.pad([(max(0, a), max(0, b)) for a, b in pairs], value=value)


@aten("reflection_pad1d.default", "reflection_pad2d.default", "reflection_pad3d.default")
def reflection_pad(x: Tensor, pad: Sequence[int]) -> Tensor:
    """Padding by reflection."""
    return x.pad(_paddings(x, pad), mode="reflect")


@aten("replication_pad1d.default", "replication_pad2d.default", "replication_pad3d.default")
def replication_pad(x: Tensor, pad: Sequence[int]) -> Tensor:
    """Padding by the elements at the border."""
    return x.pad(_paddings(x, pad), mode="replicate")


# --- indices ---------------------------------------------------------------------------------------------------------
@aten("index.Tensor", "_unsafe_index.Tensor")
def index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Elements by tensors of indices; None is a whole axis."""
    return x[tuple(slice(None) if i is None else i for i in indices)]


@aten("index_put.default", "_unsafe_index_put.default")
def index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """x with elements replaced, or with values added to them."""
    given = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    if not accumulate or any(i.dtype is dtypes.bool for _, i in given):
        copy = x.clone()
        index = tuple(slice(None) if i is None else i for i in indices)
        copy[index] = copy[index] + values if accumulate else values
        return copy
    axes = [axis for axis, _ in given]
    others = [axis for axis in range(x.ndim) if axis not in axes]
    moved = x.permute((*axes, *others))
    sizes, rest = [x.shape[a] for a in axes], [x.shape[a] for a in others]
    shape = _broadcast([i.shape for _, i in given])
    flat = Tensor.full((), 0, dtype=dtypes.int64)
    for size, (_, i) in zip(sizes, given, strict=True):
        i = i.cast(dtypes.int64).expand(shape)
        flat = flat * size + where(i < 0, i + size, i)
    together = axes == list(range(axes[0], axes[0] + len(axes)))
    before = axes[0] if together else 0  # axes of the values before those of the indices
    whole = (*(x.shape[a] for a in others[:before]), *shape, *(x.shape[a] for a in others[before:]))
    values = values.broadcast_to(whole)
    order = (*range(before, before + len(shape)), *range(before), *range(before + len(shape), len(whole)))
    rows = values.permute(order).reshape(math.prod(shape), math.prod(rest))
    table = moved.reshape(math.prod(sizes), math.prod(rest))
    found = table.index_add(0, flat.reshape(-1), rows.cast(table.dtype)).reshape((*sizes, *rest))
    return found.permute(tuple((*axes, *others).index(axis) for axis in range(x.ndim)))


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*padded, strict=True))


@aten("index_select.default")
def index_select(x: Tensor, axis: int, index: Tensor) -> Tensor:
    """Entries of an axis by indices."""
    return x.index_select(axis, index)


@aten("embedding.default")
def embedding(weight: Tensor, tokens: Tensor, *_: Any) -> Tensor:
    """Rows by indices."""
    return weight[tokens]


@aten("gather.default")
def gather(x: Tensor, axis: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    """One element of an axis for each index."""
    return x.gather(axis, index)


@aten("scatter.src", "scatter.value")
def scatter(x: Tensor, axis: int, index: Tensor, values: Any) -> Tensor:
    """x with elements of an axis replaced."""
    return x.scatter(axis, index, values)


@aten("scatter_add.default")
def scatter_add(x: Tensor, axis: int, index: Tensor, values: Tensor) -> Tensor:
    """x with values added to elements of an axis."""
    return x.scatter_add(axis, index, values)


@aten("scatter_reduce.two")
def scatter_reduce(x: Tensor, axis: int, index: Tensor, values: Tensor, kind: str, include_self: bool = True) -> Tensor:
    """x with values reduced into elements of an axis."""
    return x.scatter_reduce(axis, index, values, kind, include_self=include_self)


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    """One value where a mask is True."""
    return where(mask, value, x)
