"""Tensor methods: running sums and sorting.

Sorting counts ranks: an element's place is the number of elements that come before it. That is n * n comparisons, all
independent, and stable by construction. Running values over more than 256 entries are made of blocks.
"""

from __future__ import annotations

from typing import Self

from kernmill.ir import Op, Ops, ShapeError, dtypes, iota

from .elementwise import choose
from .indexing import Indexing
from .lazy import accumulator

__all__ = ["Scan"]

_BLOCK = 16


class Scan(Indexing):
    """Running sums and sorting."""

    # --- running values
    def cumsum(self, axis: int = 0) -> Self:
        """Running sums along an axis; ints in int64, half types added in float32."""
        return self._running(Ops.ADD, axis, "cumsum")

    def cumprod(self, axis: int = 0) -> Self:
        """Running products along an axis; ints in int64, half types multiplied in float32."""
        return self._running(Ops.MUL, axis, "cumprod")

    def _running(self, op: Op, axis: int, call: str) -> Self:
        if self.dtype.is_float:
            return self.cast(accumulator(self.dtype))._scan(op, axis, call).cast(self.dtype)
        wide = dtypes.uint64 if self.dtype is dtypes.uint64 else dtypes.int64
        return self.cast(wide)._scan(op, axis, call)

    def cummax(self, axis: int = 0) -> Self:
        """The largest value so far along an axis; nan from the first nan on. Values only."""
        return self._scan(Ops.MAX, axis, "cummax")

    def cummin(self, axis: int = 0) -> Self:
        """The smallest value so far along an axis; nan from the first nan on. Values only."""
        return self._scan(Ops.MIN, axis, "cummin")

    def logcumsumexp(self, axis: int = 0) -> Self:
        """log(cumsum(exp(x))), each sum relative to its own largest term."""
        x = self._floating()
        top = x.detach().cummax(axis)
        x, top = x.movedim(axis, -1), top.movedim(axis, -1)
        shift = choose(top.isinf(), top._filled(0), top)
        terms = x.unsqueeze(-2).sub(shift.unsqueeze(-1)).exp()
        total = choose(x._lower(), terms, terms._filled(0)).sum(-1)
        return total.log().add(shift).movedim(-1, axis)

    def _scan(self, op: Op, axis: int, call: str) -> Self:
        axis = self._axis(axis, call)
        if not self.ndim or (isinstance(self.shape[axis], int) and self.shape[axis] == 0):
            return self
        return self.movedim(axis, -1)._scan_last(op).movedim(-1, axis)

    def _unit_of(self, op: Op) -> float:
        if op in (Ops.MAX, Ops.MIN):
            limit = self.dtype.min if op is Ops.MAX else self.dtype.max
            return limit if self.dtype.is_float else int(limit)
        return 0 if op is Ops.ADD else 1

    def _lower(self) -> Self:
        """True where column <= row, as many of both as the last axis has entries, for every row of the tensor.

        Places are repeated before they are compared: what is compared at full size is computed where it is used.
        """
        size = self.shape[-1]
        shape = (*self.shape, size)
        place = self._make(iota(size, dtypes.int32 if isinstance(size, int) else dtypes.int64))
        return place.expand(shape).le(place.unsqueeze(-1).expand(shape))

    def _scan_last(self, op: Op) -> Self:
        """Blocks folded, what stands before each block, and every place in its block joined with that."""
        size = self.shape[-1]
        unit = self._unit_of(op)
        if size <= _BLOCK:
            wide = self.unsqueeze(-2)
            return choose(self._lower(), wide, wide._filled(unit))._reduce(op, -1, False, "scan")
        rows = -(-size // _BLOCK)
        padded = self.pad([*((0, 0) for _ in self.shape[:-1]), (0, rows * _BLOCK - size)], value=unit)
        blocks = padded.reshape((*self.shape[:-1], rows, _BLOCK))
        last = blocks._reduce(op, -1, False, "scan")
        before = last.pad([*((0, 0) for _ in last.shape[:-1]), (1, 0)], value=unit)
        before = before.shrink([*(None for _ in last.shape[:-1]), (0, rows)])._scan_last(op)
        joined = blocks._scan_last(op)._apply(op, before.unsqueeze(-1)).reshape(padded.shape)
        return joined.shrink([*(None for _ in self.shape[:-1]), (0, size)])

    # --- sorting
    def _order(self, axis: int, descending: bool, count: int | None, call: str) -> Self:
        """The places of the first `count` elements in sorted order."""
        axis = self._axis(axis, call)
        x = self.detach().movedim(axis, -1) if self.ndim else self.detach().reshape(1)
        size = x.shape[-1]
        own, other = x.unsqueeze(-1), x.unsqueeze(-2)
        less = own.lt(other) if descending else other.lt(own)
        same = other.eq(own)
        if self.dtype.is_float:
            is_nan, other_nan = own.isnan(), other.isnan()
            less = less.logical_or(other_nan.logical_and(is_nan.logical_not()) if descending else
                                   is_nan.logical_and(other_nan.logical_not()))  # fmt: skip
            same = same.logical_or(is_nan.logical_and(other_nan))
        place = self._make(iota(size))
        earlier = place.lt(place.unsqueeze(-1))
        rank = less.logical_or(same.logical_and(earlier)).sum(-1)
        wanted = self._make(iota(size if count is None else count)).unsqueeze(-1)
        hit = rank.unsqueeze(-2).eq(wanted)
        order = choose(hit, place, place._filled(0)).sum(-1)
        return order.movedim(-1, axis) if self.ndim else order.reshape(())

    def argsort(self, axis: int = -1, descending: bool = False) -> Self:
        """The places of the elements in sorted order, int64. Stable; nan counts as the largest."""
        return self._order(axis, descending, None, "argsort")

    def _picked(self, order: Self, axis: int) -> Self:
        return self.gather(axis, order) if self.ndim else self

    def sort(self, axis: int = -1, descending: bool = False) -> tuple[Self, Self]:
        """The elements in order, and the places they had. Stable; nan counts as the largest, so it comes last."""
        order = self._order(axis, descending, None, "sort")
        return self._picked(order, axis), order

    def topk(self, k: int, axis: int = -1, largest: bool = True) -> tuple[Self, Self]:
        """The k largest (or smallest) elements in order, and their places; the first of equal ones first.

        Raises:
            ShapeError: fewer than k elements.
        """
        size = self.shape[self._axis(axis, "topk")] if self.ndim else 1
        if isinstance(size, int) and not 0 <= k <= size:
            raise ShapeError(f"topk: {k} of {size} elements. Ask for 0 to {size}.")
        order = self._order(axis, largest, k, "topk")
        return self._picked(order, axis), order

    def median(self, axis: int | None = None) -> Self:
        """The middle value, the lower one of two as in PyTorch; nan if there is one."""
        if axis is None:
            return self.flatten().median(0)
        axis = self._axis(axis, "median")
        values, _ = self.sort(axis)
        size = self.shape[axis]
        if not size:
            raise ShapeError("median: nothing has no median. Check the size first.")
        middle = values.index_select(axis, [(size - 1) // 2]).squeeze(axis)
        last = values.index_select(axis, [size - 1]).squeeze(axis)
        return choose(last.isnan(), last, middle)
