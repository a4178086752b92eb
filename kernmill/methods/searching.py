"""Tensor methods: values found in sorted ones, counted by index, and combined where an index repeats.

A result whose size depends on the values has the fixed size that the caller gives, or one that is computed first.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from kernmill.ir import (
    DTypeError,
    Op,
    Ops,
    SettingError,
    ShapeError,
    dtypes,
    iota,
    numel,
    reshape,
    show_shape,
    take,
)

from ..lazy import Lazy
from .elementwise import choose
from .indexing import data_dependent, is_recording
from .scan import Scan
from .segments import added

if TYPE_CHECKING:
    from ..lazy import Operand

__all__ = ["Searching"]

_FEW = 32  # values that `isin` compares one by one; more are sorted
_REDUCTIONS: dict[str, tuple[Op, str]] = {  # reduction: the op of `added`, the method that joins two results
    "sum": (Ops.ADD, "add"), "add": (Ops.ADD, "add"), "mean": (Ops.ADD, "add"), "prod": (Ops.MUL, "mul"),
    "multiply": (Ops.MUL, "mul"), "amax": (Ops.MAX, "maximum"), "amin": (Ops.MIN, "minimum"),
}  # fmt: skip


class Searching(Scan):
    """Searches, and reductions over entries with the same index."""

    # --- sorted values
    def searchsorted(self, values: Operand, *, right: bool = False, side: str | None = None) -> Self:
        """Return the insertion index of each of `values` in this sorted vector, int64: before equal entries, with
        `right` after them.

        nan is larger than any number. Leading axes, if there are any, are those of `values` too.

        Raises:
            ShapeError: leading axes that differ.
        """
        if side not in (None, "left", "right"):
            raise SettingError(f"searchsorted: side={side!r}: must be 'left' or 'right'.")
        own, wanted = self._join(values)
        lead = own.uop.shape[:-1]
        if not own.ndim or (lead and (wanted.ndim != own.ndim or wanted.uop.shape[:-1] != lead)):
            raise ShapeError(
                f"searchsorted: sorted values of shape {show_shape(own.uop.shape)} and values of shape "
                f"{show_shape(wanted.uop.shape)}: the first needs the leading axes of the second, or none."
            )
        size, rows = own.shape[-1], numel(lead)
        keys = own.detach()._ordered()._stored().flatten()
        key = wanted.detach()._ordered()
        key = key._result(reshape(key.uop, (rows, wanted.node_shape[-1]) if lead else (1, numel(wanted.uop.shape))))
        start = self._make(reshape(iota(rows), (rows, 1))).mul(size) if lead else key._filled(0)
        found = key._filled(0)
        is_right = right or side == "right"
        for step in (1 << bit for bit in reversed(range(int(size).bit_length()))):
            after = found.add(step)
            entry = self._make(take(keys.uop, start.add(after.sub(1).minimum(size - 1)).uop, 0), self._device)
            goes_on = entry.le(key) if is_right else entry.lt(key)
            found = choose(goes_on.logical_and(after.le(size)), after, found)
        return wanted.detach()._result(reshape(found.uop, wanted.uop.shape), own.detach())

    def isin(self, values: Operand, *, invert: bool = False) -> Self:
        """True where an element equals one of `values`; with `invert` where it equals none. nan equals nothing."""
        own, others = self.detach()._join(values)
        others = others.detach().flatten()
        count = others.node_shape[0]
        if isinstance(count, int) and count > _FEW:
            ordered = others.sort()[0]
            found = ordered[ordered.searchsorted(own).minimum(count - 1)].eq(own)
        else:
            found = own.unsqueeze(-1).eq(others).any(-1)
        return found.logical_not() if invert else found

    # --- reductions by index
    def scatter_reduce(self, axis: int, index: Self, value: Self, reduce: str, *, include_self: bool = True) -> Self:
        """Return self with the values of each index combined: `reduce` is sum, prod, mean, amax or amin.

        The value of self there is included, unless `include_self` is False. The mean of ints is rounded down.
        """
        if reduce not in _REDUCTIONS:
            raise SettingError(f"scatter_reduce: reduce={reduce!r}: must be 'sum', 'prod', 'mean', 'amax' or 'amin'.")
        op, join = _REDUCTIONS[reduce]
        axis = self._axis(axis, "scatter_reduce")
        self._check_axes("scatter_reduce", axis, index)
        if not self.ndim:
            one = [t.reshape((1,)) for t in (self, index, self._own(value))]
            return one[0].scatter_reduce(0, one[1], one[2], reduce, include_self=include_self).reshape(())
        source = self._own(value)
        self._check_source("scatter_reduce", index, source)
        source = source.shrink([(0, s) for s in index.node_shape])
        named = self._index(index, axis, self.uop.shape[axis], "scatter_reduce")._as_rows(axis)
        count = self._by_index(source._filled(1).cast(dtypes.int64), named, axis, index, Ops.ADD)
        total = self._by_index(source, named, axis, index, op)
        start = self if include_self else choose(count.gt(0), self._filled(_unit(op, self)), self)
        result: Self = getattr(start, join)(total)
        if reduce == "mean":
            count = count.add(1) if include_self else count.maximum(1)
            return (
                result.div(count.cast(self.dtype))
                if self.dtype.is_float
                else result.floor_divide(count.cast(self.dtype))
            )
        return result

    def _combined(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, axis: int, index: Self, value: Self, reduce: str
    ) -> Self:
        return self.scatter_reduce(axis, index, value, reduce)

    def _by_index(self, source: Self, named: Self, axis: int, index: Self, op: Op) -> Self:
        """The values with each index, combined, in this tensor's shape."""
        shape, size = index.uop.shape, self.node_shape[axis]
        total = added(source._as_rows(axis).unsqueeze(-1), named, size, op).squeeze(-1)._from_rows(axis, shape)
        return total.pad(self._missing(total), value=_unit(op, source))

    def segment_sum(self, index: Self, num_segments: int) -> Self:
        """Return the sum of the entries (axis 0) with each number in `index`; 0 for no entries."""
        return self._segments(index, num_segments, "sum")

    def segment_prod(self, index: Self, num_segments: int) -> Self:
        """Return the product of the entries (axis 0) with each number in `index`; 1 for no entries."""
        return self._segments(index, num_segments, "prod")

    def segment_max(self, index: Self, num_segments: int) -> Self:
        """Return the largest of the entries (axis 0) with each number in `index`; the dtype's least for no entries."""
        return self._segments(index, num_segments, "amax")

    def segment_min(self, index: Self, num_segments: int) -> Self:
        """Return the smallest of the entries (axis 0) with each number in `index`; the dtype's greatest for no
        entries."""
        return self._segments(index, num_segments, "amin")

    def _segments(self, index: Self, count: int, reduce: str) -> Self:
        self._there(0, f"segment_{reduce.removeprefix('a')}")
        if reduce == "sum":
            return self.zeros((count, *self.node_shape[1:]), dtype=self.dtype).index_add(0, index, self)
        start = self.full((count, *self.node_shape[1:]), _unit(_REDUCTIONS[reduce][0], self), dtype=self.dtype)
        wide = index.reshape((-1, *(1 for _ in self.node_shape[1:]))).expand(self.node_shape)
        return start.scatter_reduce(0, wide, self, reduce)

    # --- results of a fixed size
    def nonzero(self, *, size: int | None = None, fill_value: int = 0) -> Self:
        """The indices of the elements that are not 0, int64 of shape (size, axes); rows without one are `fill_value`.
        Without `size` their number is computed first.

        Raises:
            ShapeError: without `size` in a captured function, where the shape must not depend on the values.
        """
        if size is None:
            size = self._truth()._number_of_true("nonzero")
        flat, is_found = self._truth().flatten()._first_true(size)
        columns, left = [], flat
        for length in reversed(self.node_shape):
            columns.append(left.remainder(max(length, 1)))
            left = left.floor_divide(max(length, 1))
        if not columns:
            return flat.unsqueeze(1).shrink([None, (0, 0)])
        first, *others = columns[::-1]
        return choose(is_found.unsqueeze(1), first.stack(*others, axis=1), first._make(first._tensor(fill_value).uop))

    def masked_select(self, mask: Self, *, size: int | None = None, fill_value: float = 0) -> Self:
        """Return the first `size` elements where the mask is true, as a vector; `fill_value` if there are fewer.
        Without `size` their number is computed first.

        Raises:
            ShapeError: without `size` in a captured function, where the shape must not depend on the values.
        """
        x, wide = self.broadcast_tensors(mask)
        if not wide.dtype.is_bool:
            raise DTypeError(f"masked_select: a mask of dtype {mask.dtype.name}: must be bool. Compare it with != 0.")
        if size is None:
            size = wide._number_of_true("masked_select")
        flat, is_found = wide.flatten()._first_true(size)
        if 0 in x.shape:
            return choose(is_found, x._own(0), x._own(fill_value))
        return choose(is_found, x.flatten()[flat], x._own(fill_value))

    def _number_of_true(self, call: str) -> int:
        """How many elements are true, computed now."""
        if is_recording():
            raise data_dependent(call, "Pass size=")
        return int(self.cast(dtypes.int64).sum().item())  # type: ignore[attr-defined]

    def _first_true(self, size: int) -> tuple[Self, Self]:
        """The indices of the first `size` true elements of a vector, and which of them exist; the others are 0."""
        size = operator.index(size)
        if size < 0:
            raise ShapeError(f"size={size}: must be 0 or more.")
        count = self.node_shape[0]
        if not count:
            nothing = self._make(iota(size)).mul(0)
            return nothing, nothing.ne(0)
        at = self.cumsum().searchsorted(self._make(iota(size)).add(1))
        is_found = at.lt(count)
        return choose(is_found, at, at._filled(0)), is_found

    # --- repeats
    def repeat_interleave(self, repeats: int | Sequence[int] | Any, axis: int | None = None) -> Self:
        """Repeat every entry of an axis consecutively; without an axis every element of the flat tensor.

        `repeats` is one number, or a list, array or tensor with a number for each entry; a tensor's are computed now.

        Raises:
            ShapeError: another number of repeats; a tensor of them in a captured function, where the shape must not
                depend on its values.
        """
        import numpy as np

        if isinstance(repeats, Lazy) and repeats.ndim:
            if is_recording():
                raise data_dependent("repeat_interleave", "Give repeats as a list")
            repeats = repeats.numpy()  # type: ignore[attr-defined]
        if isinstance(repeats, int) or not getattr(repeats, "ndim", isinstance(repeats, Sequence)):
            return super().repeat_interleave(repeats, axis)  # type: ignore[arg-type]
        if axis is None:
            return self.flatten().repeat_interleave(repeats, 0)
        axis, counts = self._there(axis, "repeat_interleave"), np.asarray(repeats)
        size = self.node_shape[axis]
        if counts.shape not in ((size,), (1,)) or counts.dtype.kind not in "iu" or (counts.size and counts.min() < 0):
            raise ShapeError(
                f"repeat_interleave: repeats {counts.tolist()} for axis {axis} of size {size}: must be an integer of 0 "
                "or more for each entry."
            )
        return self.index_select(axis, np.repeat(np.arange(size), counts).tolist())


def _unit(op: Op, like: Lazy) -> float:
    """The value that changes nothing."""
    if op in (Ops.ADD, Ops.MUL):
        return int(op is Ops.MUL)
    limit = like.dtype.min if op is Ops.MAX else like.dtype.max
    return limit if like.dtype.is_float else int(limit)
