"""Tensor methods: the same values in another dtype, on another device, in a separate buffer."""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType
from typing import Self

from kernmill.ir import DType, DTypeError, DTypeLike, Ops, ShapeError, UOp, as_dtype, dtypes, iota, show_shape
from kernmill.runtime import device_list, get_device

from ..lazy import device_name
from .losses import Losses

__all__ = ["Casting"]

_Size = int | Sequence[int]
_UNSIGNED = {8: dtypes.uint8, 16: dtypes.uint16, 32: dtypes.uint32, 64: dtypes.uint64}


class Casting(Losses):
    """Conversions."""

    def float(self) -> Self:
        """The values as float32."""
        return self.cast(dtypes.float32)

    def double(self) -> Self:
        """The values as float64."""
        return self.cast(dtypes.float64)

    def half(self) -> Self:
        """The values as float16."""
        return self.cast(dtypes.float16)

    def bfloat16(self) -> Self:
        """The values as bfloat16."""
        return self.cast(dtypes.bfloat16)

    def int(self) -> Self:
        """The values as int32."""
        return self.cast(dtypes.int32)

    def long(self) -> Self:
        """The values as int64."""
        return self.cast(dtypes.int64)

    def short(self) -> Self:
        """The values as int16."""
        return self.cast(dtypes.int16)

    def bool(self) -> Self:
        """Return True where the value is not 0."""
        return self.cast(dtypes.bool)

    def bitcast(self, dtype: DTypeLike) -> Self:
        """The same bytes as another dtype; the last axis gets longer or shorter where the sizes of the dtypes differ.

        Raises:
            DTypeError: a bool, whose bits are not defined.
            ShapeError: a last axis that does not divide evenly.
        """
        dtype, own = as_dtype(dtype), self.dtype
        if dtype.is_bool is not own.is_bool:
            raise DTypeError(f"bitcast: {own.name} to {dtype.name}: a bool has no defined bits. Use cast.")
        if dtype.bits == own.bits:
            return self._result(self.uop.bitcast(dtype))
        ratio, size = max(dtype.bits, own.bits) // min(dtype.bits, own.bits), self.node_shape[-1] if self.ndim else 1
        if dtype.bits > own.bits and (not self.ndim or size % ratio):
            raise ShapeError(
                f"bitcast: {own.name} of shape {show_shape(self.uop.shape)} to {dtype.name}: the last axis must be a "
                f"multiple of {ratio}. Slice or pad it."
            )
        wide, narrow = (_UNSIGNED[bits] for bits in (max(dtype.bits, own.bits), min(dtype.bits, own.bits)))
        shifts = self._make(iota(ratio)).mul(narrow.bits).cast(wide)  # the lowest byte is first in memory
        lead = self.node_shape[:-1]
        if dtype.bits < own.bits:
            parts = self._result(self.uop.bitcast(wide)).unsqueeze(-1).bitwise_right_shift(shifts).cast(narrow)
            found = parts.reshape((*lead, size * ratio))
        else:
            parts = self._result(self.uop.bitcast(narrow)).reshape((*lead, size // ratio, ratio)).cast(wide)
            found = parts.bitwise_left_shift(shifts)._reduce(Ops.ADD, -1, False, "bitcast")
        return found._result(found.uop.bitcast(dtype))

    def view(self, *shape: _Size | DTypeLike) -> Self:
        """`reshape`; of a dtype `bitcast`, as in PyTorch and NumPy."""
        if len(shape) == 1 and isinstance(shape[0], (DType, str, type)):
            return self.bitcast(shape[0])
        return self.reshape(*shape)  # type: ignore[arg-type]

    def to(self, target: DTypeLike | None = None, dtype: DTypeLike | None = None, *, device: str | None = None) -> Self:
        """Return the tensor on another device (by name), or in another dtype, or both.

        Raises:
            DeviceError: unknown device.
        """
        if dtype is not None or device is not None:
            x = self if device is None else self.to(device)
            x = x if dtype is None else x.cast(dtype)
            return x if target is None else x.to(target)
        if not isinstance(target, (str, NoneType)):
            return self.cast(target)
        name = device_name(target)
        if name == self._device and (len(device_list()) == 1 or self.uop.storage is not None):
            return self
        get_device(name)  # now, not when it is realized
        new = self._result(UOp(Ops.COPY, self.dtype, (self.uop,), name))
        new._device = name
        return new

    def contiguous(self) -> Self:
        """Return the values in a separate buffer, row-major, when realized."""
        return self._stored()

    def clone(self) -> Self:
        """Return a copy. A tensor's changes are never visible in another one, so this costs nothing."""
        return self._own_box()
