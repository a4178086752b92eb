"""Tensor methods: reductions. `axis` is an int, several, or None for all; `keepdim` keeps axes of size 1.

max, min and argmax treat nan as NumPy does: it is the largest and the smallest. max(axis) returns values only, as in
NumPy; PyTorch's pair is (x.max(axis), x.argmax(axis)). Half types are summed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Self

from kernmill.ir import (
    DType,
    DTypeError,
    DTypeLike,
    Op,
    Ops,
    SettingError,
    ShapeError,
    UOp,
    dtypes,
    iota,
    numel,
    reduce_axes,
    reshape,
    show_shape,
)

from ..lazy import accumulator
from .activations import Activations
from .elementwise import choose
from .movement import Axes, Joining

__all__ = ["Reduce"]


class Reduce(Activations, Joining):
    """Reductions."""

    def _reduce(self, op: Op, axis: Axes, keepdim: bool, call: str) -> Self:
        """Reduce axes with an op, in this dtype."""
        axes = self._axes(axis, call)
        node = reduce_axes(self.uop, op, axes)
        if not keepdim:
            node = reshape(node, tuple(s for a, s in enumerate(node.shape) if a not in axes))
        return self._result(node)

    def sum(self, axis: Axes = None, keepdim: bool = False, dtype: DTypeLike | None = None) -> Self:
        """Return the sum; ints and bools in int64, as in NumPy (uint64 is unchanged).

        Dtypes: half types are added in float32 and rounded once.
        """
        if dtype is not None:
            x = self.cast(dtype)
            return x.sum(axis, keepdim) if x.dtype.is_float else x._reduce(Ops.ADD, axis, keepdim, "sum")
        if not self.dtype.is_float:
            return self.cast(_wide(self.dtype))._reduce(Ops.ADD, axis, keepdim, "sum")
        return self._as(accumulator(self.dtype))._reduce(Ops.ADD, axis, keepdim, "sum")._as(self.dtype)

    def prod(self, axis: Axes = None, keepdim: bool = False, dtype: DTypeLike | None = None) -> Self:
        """The product; ints and bools in int64."""
        if dtype is not None:
            x = self.cast(dtype)
            return x.prod(axis, keepdim) if x.dtype.is_float else x._reduce(Ops.MUL, axis, keepdim, "prod")
        wide = accumulator(self.dtype) if self.dtype.is_float else _wide(self.dtype)
        result = self.cast(wide)._reduce(Ops.MUL, axis, keepdim, "prod")
        return result.cast(self.dtype) if self.dtype.is_float else result

    def _nonempty(self, axis: Axes, call: str) -> None:
        if any(isinstance(self.node_shape[a], int) and self.node_shape[a] == 0 for a in self._axes(axis, call)):
            raise ShapeError(
                f"{call}: shape {show_shape(self.uop.shape)}, axis {axis}: {call} of an empty axis is undefined. "
                "Check the size first."
            )

    def max(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """The largest value; nan if there is one. Its gradient is shared evenly by equal values."""
        self._nonempty(axis, "max")
        return self._reduce(Ops.MAX, axis, keepdim, "max")

    def min(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """The smallest value; nan if there is one. Its gradient is shared evenly by equal values."""
        self._nonempty(axis, "min")
        return self._reduce(Ops.MIN, axis, keepdim, "min")

    amax, amin = max, min

    def any(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """Return True if one value is not 0 (nan is not 0)."""
        return self._truth()._reduce(Ops.OR, axis, keepdim, "any")

    def all(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """Return True if no value is 0."""
        return self._truth()._reduce(Ops.AND, axis, keepdim, "all")

    def count_nonzero(self, axis: Axes = None) -> Self:
        """How many values are not 0, int64."""
        return self._truth().sum(axis)

    # --- indices
    def _ordered(self, *, nan_first: bool = False) -> Self:
        """Return integers in the order of the values, int64; for dtypes up to 32 bits between -2**31 and 2**31.

        nan counts as the largest, or with `nan_first` as the smallest; -0 as 0.
        """
        if not self.dtype.is_float:
            sign = 0 if self.dtype.is_bool or self.dtype.min else int(self.dtype.max) // 2 + 1
            if self.dtype.bits == 64:
                return self._result(self.bitwise_xor(sign).uop.bitcast(dtypes.int64)) if sign else self
            return self.cast(dtypes.int64).sub(sign if self.dtype.bits == 32 else 0)
        x = self if self.dtype.bits == 64 else self.cast(dtypes.float32)
        whole = dtypes.int64 if x.dtype.bits == 64 else dtypes.int32
        bits = self._result(x.add(0.0).uop.bitcast(whole))
        upwards = bits.bitwise_xor(bits.bitwise_right_shift(whole.bits - 1).bitwise_and(int(whole.max)))
        end = upwards._filled(int(whole.min if nan_first else whole.max))
        return choose(x.isnan(), end, upwards).cast(dtypes.int64)

    def argmax(self, axis: int | None = None, keepdim: bool = False) -> Self:
        """Return the index of the first largest value, int64; nan counts as the largest. No axis: in the flat
        tensor."""
        return self._index_of_first(Ops.MAX, axis, keepdim, "argmax")

    def argmin(self, axis: int | None = None, keepdim: bool = False) -> Self:
        """Return the index of the first smallest value, int64; nan counts as the smallest. No axis: in the flat
        tensor."""
        return self._index_of_first(Ops.MIN, axis, keepdim, "argmin")

    def _index_of_first(self, op: Op, axis: int | None, keepdim: bool, call: str) -> Self:
        if axis is None:
            flat = self.flatten()._index_of_first(op, 0, True, call)
            return flat._result(reshape(flat.uop, (1,) * self.ndim if keepdim else ()))
        self._nonempty(axis, call)
        axis = self._axis(axis, call)
        x = self.detach() if self.ndim else self.detach().reshape(1)
        size = x.node_shape[axis]
        fits = self.dtype.bits == 32 or self.dtype in (dtypes.float16, dtypes.bfloat16)  # small ints: lanes weigh more
        if fits and axis == x.ndim - 1 and (not isinstance(size, int) or size < 1 << 32):
            first = x._first_by_key(op, call)
        else:
            first = x._first_by_value(op, axis, call)
        sizes = first.node_shape
        shape = sizes if keepdim else (*sizes[:axis], *sizes[axis + 1 :])
        return first._result(reshape(first.uop, shape if self.ndim else ()))

    def _first_by_key(self, op: Op, call: str) -> Self:
        """Reduce along the last axis in one pass: the smallest key of value and index."""
        ordered = self._ordered().bitwise_not() if op is Ops.MAX else self._ordered(nan_first=True)
        keys = ordered.bitwise_left_shift(32).bitwise_or(self._make(iota(self.uop.shape[-1])))
        return keys._reduce(Ops.MIN, -1, True, call).bitwise_and(0xFFFFFFFF)

    def _first_by_value(self, op: Op, axis: int, call: str) -> Self:
        """Reduce in two passes: the best value, then the first index that has it."""
        found = self.eq(self._reduce(op, axis, True, call))
        if self.dtype.is_float:
            found = found.logical_or(self.isnan())
        size = self.node_shape[axis]
        narrow = dtypes.int32 if isinstance(size, int) and size < 2**31 else dtypes.int64  # as many lanes as float32
        indices = self._make(reshape(iota(size, narrow), [size if a == axis else 1 for a in range(self.ndim)]))
        first = choose(found, indices, indices._tensor(size).cast(narrow))._reduce(Ops.MIN, axis, True, call)
        return first.cast(dtypes.int64)

    # --- moments
    def nansum(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """Return the sum of the values that are not nan."""
        return choose(self.isnan(), self._filled(0), self).sum(axis, keepdim)

    def nanmean(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """Return the mean of the values that are not nan; nan if there are none."""
        if not self.dtype.is_float:
            return self.mean(axis, keepdim)
        wide = self.cast(accumulator(self.dtype))
        count = self.isnan().logical_not().sum(axis, keepdim)
        return wide.nansum(axis, keepdim).div(count.cast(wide.dtype)).cast(self.dtype)

    def _count(self, axis: Axes, call: str) -> int | UOp:
        return numel(tuple(self.node_shape[a] for a in self._axes(axis, call)))

    def mean(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """The mean; ints are added exactly and give float32. Half types are added in float32."""
        if self.dtype.is_int and self.dtype.bits == 64:  # the sum may overflow, those of both halves do not
            halves = self.bitwise_right_shift(32), self.bitwise_and(0xFFFFFFFF)
            high, low = (half.cast(dtypes.int64).sum(axis, keepdim) for half in halves)
            # the other part is below 2**31: both as floats lose little
            carry = low.add(1 << 31).bitwise_right_shift(32)
            high, low = high.add(carry)._floating(), low.sub(carry.bitwise_left_shift(32))._floating()
            return high.mul(2.0**32).add(low)._divided(self._count(axis, "mean"))
        if not self.dtype.is_float:
            return self.sum(axis, keepdim)._floating()._divided(self._count(axis, "mean"))
        wide = self.cast(accumulator(self.dtype))
        return wide.sum(axis, keepdim)._divided(self._count(axis, "mean")).cast(self.dtype)

    def _divided(self, count: int | UOp) -> Self:
        if isinstance(count, UOp):
            return self.div(self._make(count.cast(self.dtype)))
        return self.div(float(count))

    def var(self, axis: Axes = None, keepdim: bool = False, *, correction: float = 1) -> Self:
        """The variance, over count - correction; nan where that is 0."""
        return self._variance(axis, keepdim, correction).cast(self._floating().dtype)

    def _variance(self, axis: Axes, keepdim: bool, correction: float) -> Self:
        """The variance, not yet rounded to a half type."""
        x = self._floating()
        wide = x.cast(accumulator(x.dtype))
        count = self._count(axis, "var")
        squares = wide.sub(wide.mean(axis, keepdim=True)).square().sum(axis, keepdim)
        left = count - correction if isinstance(count, UOp) else max(0.0, count - correction)
        return squares._divided(left)  # type: ignore[arg-type]

    def std(self, axis: Axes = None, keepdim: bool = False, *, correction: float = 1) -> Self:
        """The standard deviation, the square root of `var`. Its gradient at 0 is 0."""
        return self._variance(axis, keepdim, correction)._flat_at_zero(0.5).cast(self._floating().dtype)

    def var_mean(self, axis: Axes = None, keepdim: bool = False, *, correction: float = 1) -> tuple[Self, Self]:
        """The variance and the mean."""
        return self.var(axis, keepdim, correction=correction), self.mean(axis, keepdim)

    def std_mean(self, axis: Axes = None, keepdim: bool = False, *, correction: float = 1) -> tuple[Self, Self]:
        """The standard deviation and the mean."""
        return self.std(axis, keepdim, correction=correction), self.mean(axis, keepdim)

    def norm(self, p: float = 2.0, axis: Axes = None, keepdim: bool = False) -> Self:
        """Return the p-norm of the entries: p a number, inf (largest size) or -inf (smallest size). Its gradient at 0
        is 0.

        Raises:
            DTypeError: an int tensor.
            SettingError: p is not a number.
        """
        if not isinstance(p, Real):
            raise SettingError(
                f"norm: p={p!r} is not a number: 2 is the Euclidean norm. Pass axes by name: norm(axis=..)."
            )
        if not self.dtype.is_float:
            raise DTypeError(f"norm: of a {self.dtype.name} tensor. Use .float() first.")
        size = self.abs()
        if math.isinf(p):
            return size.max(axis, keepdim) if p > 0 else size.min(axis, keepdim)
        if p == 0:
            ones = choose(self.eq(0), self._filled(0), self.pow(0))  # it depends on self, with gradient 0
            return ones.sum(axis, keepdim)
        wide = size.cast(accumulator(self.dtype))
        if p == 1:
            return wide.sum(axis, keepdim).cast(self.dtype)
        powers = self.cast(wide.dtype).square() if p == 2 else wide._flat_at_zero(p)
        return powers.sum(axis, keepdim)._flat_at_zero(1 / p).cast(self.dtype)

    def _flat_at_zero(self, exponent: float) -> Self:
        """self ** exponent, with gradient 0 where self is 0."""
        is_zero = self.eq(0)
        power = choose(is_zero, self._filled(1), self).pow(exponent)
        return choose(is_zero, self._filled(0 if exponent > 0 else math.inf), power)

    # --- exponentials
    def logsumexp(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """Return log(sum(exp(x))) without overflow; of -inf only, -inf."""
        x = self._floating()
        wide = x.cast(accumulator(x.dtype))
        if any(isinstance(self.node_shape[a], int) and self.node_shape[a] == 0 for a in self._axes(axis, "logsumexp")):
            return wide.exp().sum(axis, keepdim).log().cast(x.dtype)
        top = wide.detach().max(axis, keepdim=True)
        top = choose(top.isinf(), top._filled(0), top)
        total = wide.sub(top).exp().sum(axis, keepdim=True).log().add(top)
        return (total if keepdim else total._dropped(self._axes(axis, "logsumexp"))).cast(x.dtype)

    def _dropped(self, axes: Sequence[int]) -> Self:
        return self.reshape(tuple(s for a, s in enumerate(self.node_shape) if a not in axes))

    def softmax(self, axis: int = -1, dtype: DTypeLike | None = None) -> Self:
        """exp(x) / sum(exp(x)) along an axis; half types in float32."""
        e = self._shifted(axis, dtype, "softmax").exp()
        return e.mul(e.sum(self._lone(axis), keepdim=True).reciprocal()).cast(dtype or self._floating().dtype)

    def log_softmax(self, axis: int = -1, dtype: DTypeLike | None = None) -> Self:
        """log(softmax(x)), without overflow."""
        x = self._shifted(axis, dtype, "log_softmax")
        return x.sub(x.exp().sum(self._lone(axis), keepdim=True).log()).cast(dtype or self._floating().dtype)

    def softmin(self, axis: int = -1) -> Self:
        """softmax(-x)."""
        return self._floating().neg().softmax(axis)

    def _lone(self, axis: int) -> Axes:
        return axis if self.ndim else None

    def _shifted(self, axis: int, dtype: DTypeLike | None, call: str) -> Self:
        """x minus its largest value along the axis."""
        self._axis(axis, call)
        x = self.cast(dtype) if dtype is not None else self._floating()
        x = x.cast(accumulator(x.dtype))
        if numel(x.uop.shape) == 0:
            return x
        return x.sub(x.detach().max(self._lone(axis), keepdim=True))

    def normalize(self, p: float = 2.0, axis: int = 1, eps: float = 1e-12) -> Self:
        """x divided by its p-norm along an axis, or by eps where that is larger."""
        return self.div(self.norm(p, axis, keepdim=True).clamp(min=eps))


def _wide(dtype: DType) -> DType:
    return dtype if dtype is dtypes.uint64 else dtypes.int64
