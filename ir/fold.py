"""Constant folding: an elementwise op on constants, computed as the device would, rounded and wrapped to its dtype."""

from __future__ import annotations

from typing import Any

from .ops import Ops
from .uop import UOp, const
from .values import bits_of, float_to_int, from_bits, to_dtype

__all__ = ["apply_op", "fold_constant"]


def apply_op(u: UOp, values: tuple[Any, ...]) -> Any:
    """Apply the op of `u` to one Python number per source, in the dtype of `u`."""
    if u.op is Ops.CAST:
        is_cut = u.src[0].dtype.is_float and u.dtype.is_int and not u.dtype.is_index
        return float_to_int(u.dtype.scalar, values[0]) if is_cut else to_dtype(u.dtype, values[0])
    if u.op is Ops.BITCAST:
        return from_bits(u.dtype.scalar, bits_of(u.src[0].dtype.scalar, values[0]))
    assert u.op.py is not None
    return to_dtype(u.dtype, u.op.py(*values))


def fold_constant(u: UOp) -> UOp | None:
    """Return the constant that an elementwise op on constants gives; None if a source is not constant."""
    for s in u.src:
        if s.op is not Ops.CONST:
            return None
    if u.dtype.lanes == 1 or not any(isinstance(s.arg, tuple) for s in u.src):
        return const(u.dtype, apply_op(u, tuple(s.arg for s in u.src)))
    lanes = [s.arg if isinstance(s.arg, tuple) else (s.arg,) * u.dtype.lanes for s in u.src]
    return const(u.dtype, tuple(apply_op(u, values) for values in zip(*lanes, strict=True)))
