"""Constant folding: an elementwise op on constants, computed as the device would, rounded and wrapped to its dtype."""

from __future__ import annotations

import math
import struct
from typing import Any

from .dtype import DType, Kind, dtypes, round_float
from .ops import Ops
from .uop import UOp, const

__all__ = ["apply_op", "bits_of", "fold_constant", "from_bits", "to_dtype"]


def to_dtype(dtype: DType, value: Any) -> Any:
    """A Python number as the nearest value of the scalar dtype: ints wrap, floats round to nearest even."""
    match dtype.kind:
        case Kind.FLOAT:
            return round_float(dtype.scalar, float(value))
        case Kind.BOOL:
            return bool(value)
        case Kind.INDEX:
            return int(value)
    if isinstance(value, float):
        if value != value or math.isinf(value):
            return 0 if value != value else int(dtype.max if value > 0 else dtype.min)
        value = int(value)
    wrapped = int(value) & ((1 << dtype.bits) - 1)
    return wrapped - (1 << dtype.bits) if wrapped > dtype.max else wrapped


def bits_of(dtype: DType, value: Any) -> int:
    """The bit pattern of a scalar."""
    if dtype is dtypes.bfloat16:
        return int(struct.unpack("<I", struct.pack("<f", value))[0]) >> 16
    if dtype.is_float:
        code = {16: "<e", 32: "<f", 64: "<d"}[dtype.bits]
        return int.from_bytes(struct.pack(code, value), "little")
    return int(value) & ((1 << max(8, dtype.bits)) - 1)


def from_bits(dtype: DType, bits: int) -> Any:
    """The scalar with that bit pattern."""
    if dtype is dtypes.bfloat16:
        return struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    if dtype.is_float:
        code, width = {16: ("<e", 2), 32: ("<f", 4), 64: ("<d", 8)}[dtype.bits]
        return struct.unpack(code, bits.to_bytes(width, "little"))[0]
    return to_dtype(dtype, bits)


def apply_op(u: UOp, values: tuple[Any, ...]) -> Any:
    """The op of `u` on one Python number per source, in the dtype of `u`."""
    if u.op is Ops.CAST:
        return to_dtype(u.dtype, values[0])
    if u.op is Ops.BITCAST:
        return from_bits(u.dtype.scalar, bits_of(u.src[0].dtype.scalar, values[0]))
    assert u.op.py is not None
    return to_dtype(u.dtype, u.op.py(*values))


def fold_constant(u: UOp) -> UOp | None:
    """The constant that an elementwise op on constants makes; None when a source is not constant."""
    if any(s.op is not Ops.CONST for s in u.src):
        return None
    if u.dtype.lanes == 1 or not any(isinstance(s.arg, tuple) for s in u.src):
        return const(u.dtype, apply_op(u, tuple(s.arg for s in u.src)))
    lanes = [s.arg if isinstance(s.arg, tuple) else (s.arg,) * u.dtype.lanes for s in u.src]
    return const(u.dtype, tuple(apply_op(u, values) for values in zip(*lanes, strict=True)))
