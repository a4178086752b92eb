"""Quantized operators: to integers or narrow floats with a scale and a zero point, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernmill.ir import DTypeError, dtypes

from ...methods.elementwise import where
from ...tensor import Tensor
from ..table import operator
from ..values import INTEGERS, Coded, Value, dtype_of, tensor_of, type_name
from .convolutions import conv
from .narrow import decoded, encoded


def _per_element(v: Tensor, shape: Sequence[int], axis: int, block: int) -> Tensor:
    """A scale or zero point for each element: one for all, one for an entry of the axis, or one for a block of it."""
    if v.numel() == 1 and v.ndim <= 1:
        return v.reshape(())
    axis %= len(shape)
    if v.ndim == 1:
        return v.reshape(-1, *[1] * (len(shape) - axis - 1))
    wide = v.repeat_interleave(block or -(-shape[axis] // v.shape[axis]), axis)
    return wide.shrink(
        [(0, s) if a == axis else (0, n) for a, (s, n) in enumerate(zip(shape, wide.shape, strict=True))]
    )


@operator("QuantizeLinear")
def quantize_linear(
    x: Value, scale: Value, zero: Value = None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0,
    precision: int = 0, saturate: int = 1,
) -> Value:  # fmt: skip
    t, s = _as_numbers(x), _as_numbers(scale)
    kind = _kind_of_result(zero, output_dtype)
    wide = dtype_of(precision) if precision else s.dtype if s.dtype.is_float else dtypes.float32
    assert wide is not None
    y = (t.cast(wide) / _per_element(s, t.shape, axis, block_size).cast(wide)).cast(dtypes.float32)
    if kind.startswith("float"):
        return encoded(y, kind, bool(saturate))
    y = y.round()
    if zero is not None:
        y = y + _per_element(_as_numbers(zero), t.shape, axis, block_size).float()
    if kind in INTEGERS:
        bits, signed = INTEGERS[kind]
        least, most = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        return Coded(kind, y.clamp(least, most).cast(dtypes.int8 if signed else dtypes.uint8))
    dtype = getattr(dtypes, kind)
    return y.clamp(int(dtype.min), int(dtype.max)).cast(dtypes.int32).cast(dtype)


def _as_numbers(x: Value) -> Tensor:
    return decoded(x) if isinstance(x, Coded) else tensor_of(x)


def _kind_of_result(zero: Value, code: int) -> str:
    if isinstance(zero, Coded):
        return zero.kind
    if zero is not None:
        return tensor_of(zero).dtype.name
    return type_name(code) if code else "uint8"


@operator("DequantizeLinear")
def dequantize_linear(
    x: Value, scale: Value, zero: Value = None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0
) -> Tensor:
    t, s = _as_numbers(x), _as_numbers(scale)
    dtype: Any = (dtype_of(output_dtype) if output_dtype else None) or (s.dtype if s.dtype.is_float else dtypes.float32)
    if isinstance(scale, Coded) and not output_dtype:
        raise DTypeError("DequantizeLinear: a scale of a narrow type needs the attribute output_dtype.")
    y = t.cast(dtypes.int32) if not t.dtype.is_float else t
    if zero is not None:
        z = _per_element(_as_numbers(zero), t.shape, axis, block_size)
        y = y - (z.cast(dtypes.int32) if not t.dtype.is_float else z)
    return (y.float() * _per_element(s, t.shape, axis, block_size).float()).cast(dtype)


@operator("DynamicQuantizeLinear")
def dynamic_quantize_linear(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    least, most = x.min().minimum(0), x.max().maximum(0)
    scale = (most - least) / 255
    zero = where(scale.eq(0), scale._own(0), (-least / scale)).round().clamp(0, 255)
    y = ((x / scale).round() + zero).clamp(0, 255).cast(dtypes.uint8)
    return y, scale, zero.cast(dtypes.uint8)


def _integers(x: Tensor, zero: Tensor | None, is_row: bool) -> Tensor:
    wide = x.cast(dtypes.int32)
    if zero is None:
        return wide
    z = zero.cast(dtypes.int32)
    if z.ndim == 1 and z.numel() > 1:
        z = z.reshape(-1, 1) if is_row else z
    return wide - (z.reshape(()) if z.numel() == 1 else z)


@operator("MatMulInteger")
def matmul_integer(a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None) -> Tensor:
    return _integers(a, a_zero, True) @ _integers(b, b_zero, False)


def _requantized(y: Tensor, scale: Tensor, zero: Value) -> Value:
    values = (y.float() * scale.float()).round()
    if isinstance(zero, Coded):
        return encoded(values + _as_numbers(zero).float(), zero.kind)
    z = tensor_of(zero)
    return (values + z.float()).clamp(int(z.dtype.min), int(z.dtype.max)).cast(z.dtype)


@operator("QLinearMatMul")
def q_linear_matmul(
    a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor, scale: Tensor, zero: Value
) -> Value:
    y = _integers(a, a_zero, True) @ _integers(b, b_zero, False)
    return _requantized(y, a_scale.float() * b_scale.float() / scale.float(), zero)


@operator("QLinearConv")
def q_linear_conv(
    x: Tensor, x_scale: Tensor, x_zero: Tensor, w: Tensor, w_scale: Tensor, w_zero: Tensor, scale: Tensor, zero: Value,
    bias: Tensor | None = None, *, auto_pad: str = "NOTSET", dilations: Sequence[int] | None = None, group: int = 1,
    kernel_shape: Sequence[int] | None = None, pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Value:  # fmt: skip
    wide = w.cast(dtypes.int32) - (w_zero.cast(dtypes.int32).reshape(-1, *[1] * (w.ndim - 1)))
    y = conv(_integers(x, x_zero.reshape(()), True), wide, bias, auto_pad=auto_pad, dilations=dilations, group=group,
             pads=pads, strides=strides)  # fmt: skip
    factor = (x_scale.float() * w_scale.float() / scale.float()).reshape(-1, *[1] * (w.ndim - 2))
    return _requantized(y, factor, zero)
