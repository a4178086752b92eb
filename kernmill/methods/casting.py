"""Tensor methods: the same values in another dtype, on another device, in memory of their own."""

from __future__ import annotations

from types import NoneType
from typing import Self

from kernmill.ir import DTypeError, DTypeLike, Ops, UOp, as_dtype, dtypes
from kernmill.runtime import get_device

from ..lazy import device_name
from .losses import Losses

__all__ = ["Casting"]


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
        """Whether each value is not 0."""
        return self.cast(dtypes.bool)

    def bitcast(self, dtype: DTypeLike) -> Self:
        """The same bits as another dtype.

        Raises:
            DTypeError: the sizes differ.
        """
        dtype = as_dtype(dtype)
        if dtype.bits != self.dtype.bits or dtype.is_bool or self.dtype.is_bool:
            raise DTypeError(
                f"bitcast: {self.dtype.name} to {dtype.name}: the bits differ in number. Use cast to convert values."
            )
        return self._result(self.uop.bitcast(dtype))

    def to(self, target: DTypeLike | None) -> Self:
        """The tensor on another device (by name), or in another dtype.

        Raises:
            DeviceError: there is no such device.
        """
        if not isinstance(target, (str, NoneType)):
            return self.cast(target)
        place = device_name(target)
        if place == self._device:
            return self
        get_device(place)  # now, not when it is realized
        new = self._result(UOp(Ops.COPY, self.dtype, (self.uop,), place))
        new._device = place
        return new

    def contiguous(self) -> Self:
        """The values in memory of their own, row-major, when realized."""
        return self._stored()

    def clone(self) -> Self:
        """A copy. Tensors never share what one of them can change, so this costs nothing."""
        return self._own_box()
