"""Tensor methods: prefix sums (scans) and sorting.

Scans over more than 16 entries use blocks of 8 to 16, without padding if possible: the reduction of each block, the
scan over blocks, and both combined.

Sorting orders int64 keys, the value above its index, so that no two are equal and the order is stable. Values of 64
bits are sorted by their lower halves, then by their upper ones.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Self, TypeVar

from kernmill.ir import DType, Op, Ops, SettingError, ShapeError, dtypes, iota

from ..lazy import accumulator
from ..size import SymbolicSize
from .elementwise import choose
from .indexing import Indexing

__all__ = ["Scan"]

_BLOCK = 16


class _Kind(NamedTuple):
    """The operation of a scan."""

    unit: float  # neutral element
    fold: Callable[[Any], Any]  # all along the last axis to one
    join: Callable[[Any, Any], Any]  # two to one


Values = TypeVar("Values")


class Ordered(NamedTuple, Generic[Values]):
    """The result of sort, topk, cummax and cummin."""

    values: Values
    indices: Values


class Scan(Indexing):
    """Prefix sums and sorting."""

    # --- running values
    def cumsum(self, axis: int = 0, *, include_initial: bool = False) -> Self:
        """Return prefix sums along an axis; ints in int64, half types added in float32. `include_initial` puts 0 in
        front."""
        found = self._running(Ops.ADD, axis, "cumsum")
        return found._extended(found._there(axis, "cumsum"), (1, 0), 0) if include_initial else found

    def cumprod(self, axis: int = 0, *, include_initial: bool = False) -> Self:
        """Running products along an axis; ints in int64, half types in float32. `include_initial` puts 1 in front."""
        found = self._running(Ops.MUL, axis, "cumprod")
        return found._extended(found._there(axis, "cumprod"), (1, 0), 1) if include_initial else found

    def _running(self, op: Op, axis: int, call: str) -> Self:
        kind = _kind(op, 0 if op is Ops.ADD else 1)
        if self.dtype.is_float:
            return self.cast(accumulator(self.dtype))._scan(kind, axis, call, self.dtype)
        wide = dtypes.uint64 if self.dtype is dtypes.uint64 else dtypes.int64
        return self.cast(wide)._scan(kind, axis, call)

    def cummax(self, axis: int = 0) -> Ordered[Self]:
        """The largest value so far along an axis, nan from the first nan on; and the last index that has it."""
        return self._with_last(self._scan(self._extreme(Ops.MAX), axis, "cummax"), axis)

    def cummin(self, axis: int = 0) -> Ordered[Self]:
        """The smallest value so far along an axis, nan from the first nan on; and the last index that has it."""
        return self._with_last(self._scan(self._extreme(Ops.MIN), axis, "cummin"), axis)

    def _with_last(self, values: Self, axis: int) -> Ordered[Self]:
        """Values so far, with the last index of each."""
        axis, x, best = self._axis(axis, "cummax"), self.detach(), values.detach()
        has_it = x.eq(best).logical_or(x.isnan())
        if not self.ndim:
            return Ordered(values, has_it._filled(0).cast(dtypes.int64))
        entry = self._positions(axis).reshape([self.node_shape[axis] if a == axis else 1 for a in range(self.ndim)])
        entry = choose(has_it, entry, entry._filled(0))
        return Ordered(values, entry._scan(entry._extreme(Ops.MAX), axis, "cummax"))

    def logcumsumexp(self, axis: int = 0) -> Self:
        """log(cumsum(exp(x))) along an axis, without overflow; half types added in float32."""
        x = self._floating()
        wide = x.cast(accumulator(x.dtype))
        return wide._scan(_LOG_SUM, axis, "logcumsumexp", x.dtype)

    def _scan(self, kind: _Kind, axis: int, call: str, dtype: DType | None = None) -> Self:
        axis = self._axis(axis, call)
        if not self.ndim or (isinstance(self.node_shape[axis], int) and self.node_shape[axis] == 0):
            return self.cast(dtype or self.dtype)._own_box()
        return self._scan_along(kind, axis, dtype or self.dtype)

    def _extreme(self, op: Op) -> _Kind:
        limit = self.dtype.min if op is Ops.MAX else self.dtype.max
        return _kind(op, limit if self.dtype.is_float else int(limit))

    def _lower(self) -> Self:
        """Return True where column <= row, as many of both as the last axis has entries, for every row of the tensor.

        Indices are repeated before they are compared: a comparison at full size is computed where it is used.
        """
        size = self.node_shape[-1]
        shape = (*self.node_shape, size)
        index = self._make(iota(size, dtypes.int32 if isinstance(size, int) else dtypes.int64))
        return index.expand(shape).le(index.unsqueeze(-1).expand(shape))

    def _scan_along(self, kind: _Kind, axis: int, dtype: DType) -> Self:
        """Scan by blocks: reduce them, scan these results, and combine both for every element."""
        size = self.node_shape[axis]
        if size <= _BLOCK:
            moved = self.movedim(axis, -1)
            wide = moved.unsqueeze(-2)
            short: Self = kind.fold(choose(moved._lower(), wide, wide._filled(kind.unit)))
            return short.cast(dtype).movedim(-1, axis)
        fitting = (n for n in range(_BLOCK, _BLOCK // 2 - 1, -1) if isinstance(size, int) and size % n == 0)
        each = next(fitting, _BLOCK)  # no padding, and no copy of the requested slice
        rows = -(-size // each)
        outer, inner = self.node_shape[:axis], self.node_shape[axis + 1 :]
        padded = self._extended(axis, (0, rows * each - size), kind.unit)
        blocks = padded.reshape((*outer, rows, each, *inner))
        before = kind.fold(blocks.movedim(axis + 1, -1))._extended(axis, (1, 0), kind.unit)._begun(axis, rows)
        joined: Self = kind.join(
            blocks._scan_along(kind, axis + 1, self.dtype),
            before._scan_along(kind, axis, self.dtype).unsqueeze(axis + 1),
        )
        # whole blocks: a loop over a slice of them, or over results of them, would add up each element separately
        return joined.cast(dtype)._stored().reshape(padded.node_shape)._begun(axis, size)

    def _extended(self, axis: int, by: tuple[Any, Any], unit: float) -> Self:
        return self.pad([by if a == axis else (0, 0) for a in range(self.ndim)], value=unit)

    def _begun(self, axis: int, size: Any) -> Self:
        return self.shrink([(0, size) if a == axis else None for a in range(self.ndim)])

    # --- sorting
    def _order(self, axis: int, descending: bool, count: int | None, call: str) -> Self:
        """Return the indices of the first `count` elements in sorted order."""
        axis = self._axis(axis, call)
        x = self.detach().movedim(axis, -1) if self.ndim else self.detach().reshape(1)
        order = x._sorted_indices(descending, count)
        return order.movedim(-1, axis) if self.ndim else order.reshape(())

    def _sorted_indices(self, descending: bool, count: int | None) -> Self:
        ordered = self._ordered()
        if descending:
            ordered = ordered.bitwise_not()
        if self.dtype.bits < 64:
            return ordered._sorted_by_part(count)
        by_low = ordered.bitwise_and(0xFFFFFFFF).sub(1 << 31)._sorted_by_part(None)
        by_high = ordered.bitwise_right_shift(32).gather(-1, by_low)._sorted_by_part(count)
        return by_low.gather(-1, by_high)

    def argsort(self, axis: int = -1, descending: bool = False) -> Self:
        """Return the indices of the elements in sorted order, int64. Stable; nan counts as the largest."""
        return self._order(axis, descending, None, "argsort")

    def _picked(self, order: Self, axis: int) -> Self:
        return self.gather(axis, order) if self.ndim else self._own_box()

    def sort(self, axis: int = -1, descending: bool = False) -> Ordered[Self]:
        """Return the elements in order, and their former indices. Stable; nan counts as the largest, so it comes
        last."""
        order = self._order(axis, descending, None, "sort")
        return Ordered(self._picked(order, axis), order)

    def topk(self, k: int, axis: int = -1, largest: bool = True) -> Ordered[Self]:
        """Return the k largest (or smallest) elements in order, and their indices; the first of equal ones first.

        Raises:
            ShapeError: fewer than k elements.
        """
        size = self.node_shape[self._axis(axis, "topk")] if self.ndim else 1
        k = k if isinstance(k, SymbolicSize) else operator.index(k)
        if isinstance(size, int) and not 0 <= k <= size:
            raise ShapeError(f"topk: k={k} of {size} elements: must be from 0 to {size}.")
        order = self._order(axis, largest, k, "topk")
        return Ordered(self._picked(order, axis), order)

    def quantile(self, q: float, axis: int | None = None) -> Self:
        """Return the value with the fraction q (0 to 1) of an axis below it, linear between two; nan if there is
        one."""
        if axis is None or not self.ndim:
            self._axis(axis or 0, "quantile")
            return self.flatten().quantile(q, 0)
        axis = self._axis(axis, "quantile")
        if not 0 <= q <= 1:
            raise SettingError(f"quantile: q={q}. Give a number from 0 to 1.")
        values, size = self._floating().sort(axis)[0], self.node_shape[axis]
        if not size:
            raise ShapeError("quantile: the quantile of an empty axis is undefined. Check the size first.")
        position = q * (size - 1)
        low, high, last = (
            values.index_select(axis, [i]).squeeze(axis) for i in (int(position), math.ceil(position), size - 1)
        )
        between = (
            low if position == int(position) else low.lerp(high, position - int(position))
        )  # inf - inf would be nan
        return choose(last.isnan(), last, between)

    def histc(self, bins: int = 100, min: float = 0.0, max: float = 0.0) -> Self:
        """Count the values in each of `bins` equal intervals from min to max, int64.

        If both are equal it is the range of the values without infinities. A value on a boundary counts in the upper
        interval, max in the last; values outside and nan are not counted.
        """
        if bins < 1 or not -math.inf < min <= max < math.inf:
            raise SettingError(f"histc: bins={bins}, min={min}, max={max}. Give 1 or more, and finite min <= max.")
        x = self._floating().detach().flatten()
        x = x.cast(accumulator(x.dtype))
        low, high = x._filled(min), x._filled(max)
        if min == max and not (isinstance(size := x.node_shape[0], int) and size == 0):
            low, high = choose(x.isfinite(), x, low._filled(math.inf)), choose(x.isfinite(), x, low._filled(-math.inf))
            low, high = low.min(), high.max()
            is_one = low.eq(high)
            low, high = choose(is_one, low.sub(1), low), choose(is_one, high.add(1), high)
        is_inside = x.ge(low).logical_and(x.le(high))
        bin_of = choose(is_inside, x, low).sub(low).mul(bins).div(high.sub(low)).floor().clamp(0, bins - 1)
        counts = choose(is_inside, bin_of, bin_of._filled(bins)).cast(dtypes.int64).bincount(minlength=bins + 1)
        return counts.shrink([(0, bins)])

    def median(self, axis: int | None = None) -> Self:
        """The middle value, the lower one of two as in PyTorch; nan if there is one."""
        if axis is None or not self.ndim:
            self._axis(axis or 0, "median")
            return self.flatten().median(0)
        axis = self._axis(axis, "median")
        values, _ = self.sort(axis)
        size = self.node_shape[axis]
        if not size:
            raise ShapeError("median: the median of an empty tensor is undefined. Check the size first.")
        middle = values.index_select(axis, [(size - 1) // 2]).squeeze(axis)
        last = values.index_select(axis, [size - 1]).squeeze(axis)
        return choose(last.isnan(), last, middle)


def _kind(op: Op, unit: float) -> _Kind:
    return _Kind(unit, lambda t: t._reduce(op, -1, False, "scan"), lambda a, b: a._apply(op, b))


def _log_sum(x: Any) -> Any:
    """logsumexp of the last axis; of -inf only, as before the first block, a constant: its gradient would be 0 / 0."""
    is_none = x.detach().max(-1, keepdim=True).eq(-math.inf)
    found = choose(is_none, x._filled(0.0), x).logsumexp(-1)
    return choose(is_none.squeeze(-1), found._filled(-math.inf), found)


_LOG_SUM = _Kind(-math.inf, _log_sum, lambda a, b: a.logaddexp(b))
