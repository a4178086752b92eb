"""Python numbers as values of a scalar dtype: wrapped, rounded, and as bit patterns."""

from __future__ import annotations

import math
import struct
from typing import Any

from .dtype import DType, dtypes, round_float

__all__ = ["Given", "bits_of", "float_to_int", "from_bits", "to_dtype"]

_CODES = {16: "<e", 32: "<f", 64: "<d"}  # of floats, to `struct`


class Given(float):
    """A float of the user's call. The next call may have a different one, so kernels take it as an argument.

    A CONST with it differs from one with an equal float of our own methods.
    """

    __slots__ = ()


def to_dtype(dtype: DType, value: Any) -> Any:
    """Return the nearest value of the scalar dtype: ints wrap, floats round to nearest even."""
    if dtype.is_float:
        return round_float(dtype.scalar, float(value))
    if dtype.is_index:
        return int(value)
    if dtype.is_bool:
        return bool(value)
    if isinstance(value, float):
        if value != value or math.isinf(value):
            return 0 if value != value else int(dtype.max if value > 0 else dtype.min)
        value = int(value)
    wrapped = int(value) & ((1 << dtype.bits) - 1)
    return wrapped - (1 << dtype.bits) if wrapped > dtype.max else wrapped


def float_to_int(dtype: DType, value: float) -> int:
    """Cast a float to an int dtype: truncated in int32 (64 bits: int64), then wrapped.

    nan and values out of range of that dtype give its least value, as the instructions of x86 do. The compiler writes
    the same steps (compiler/lower/decompose.py: `_float_to_int`), and `evaluate.py` has them for arrays.
    """
    limit = 2.0 ** (63 if dtype.bits == 64 else 31)
    if not dtype.is_signed and dtype.bits >= 32 and not value < limit:
        value -= 2 * limit
    whole = int(value) if -limit - 1 < value < limit else -int(limit)
    return int(to_dtype(dtype, whole))


def bits_of(dtype: DType, value: Any) -> int:
    """The bit pattern of a scalar."""
    if dtype is dtypes.bfloat16:
        return int(struct.unpack("<I", struct.pack("<f", value))[0]) >> 16
    if dtype.is_float:
        return int.from_bytes(struct.pack(_CODES[dtype.bits], value), "little")
    return int(value) & ((1 << max(8, dtype.bits)) - 1)


def from_bits(dtype: DType, bits: int) -> Any:
    """The scalar with that bit pattern."""
    if dtype is dtypes.bfloat16:
        return struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    if dtype.is_float:
        return struct.unpack(_CODES[dtype.bits], bits.to_bytes(dtype.size_bytes, "little"))[0]
    return to_dtype(dtype, bits)
