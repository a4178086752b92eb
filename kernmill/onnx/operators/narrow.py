"""Casts, and the types that tensors do not have: integers of 2 and 4 bits, floats of 4 to 8 bits."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from kernmill.ir import DTypeError, dtypes

from ...methods.elementwise import where
from ...tensor import Tensor
from ..packages import helper, onnx
from ..table import operator
from ..values import INTEGERS, Coded, Known, Value, code_of, dtype_of, tensor_of, type_name


@functools.cache
def _code_values(kind: str) -> Any:
    """The value of each code, as float32."""
    native = helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(kind.upper()))
    codes = np.arange(256 if kind != "float4e2m1" else 16, dtype=np.uint8)
    return codes.view(native).astype(np.float32)


@functools.cache
def _thresholds(kind: str) -> tuple[Any, Any, float]:
    """Of the values from 0 up: the number above which each next one is nearer, its code, and the greatest value."""
    table = _code_values(kind)
    half = 128 if kind.startswith("float8") and kind != "float8e8m0" else len(table) // (1 if "e8m0" in kind else 2)
    values = table[:half]
    finite = np.flatnonzero(np.isfinite(values))
    good = values[finite].astype(np.float64)
    middle = (good[:-1] + good[1:]) / 2
    exact = middle.astype(np.float32)
    # at the middle itself the even code wins: a threshold just below it lets it go up
    up = finite[1:] % 2 == 0
    low = np.nextafter(exact, np.float32(-np.inf))
    return np.where(up, low, exact).astype(np.float32), finite.astype(np.uint8), float(good[-1])


def decoded(x: Coded) -> Tensor:
    """The values: integers unchanged, floats as float32."""
    if x.kind in INTEGERS:
        return x.codes
    return Tensor(_code_values(x.kind))[x.codes.cast(dtypes.int32)]


def encoded(x: Tensor, kind: str, saturate: bool = True, round_mode: str = "up") -> Coded:
    """The nearest values of a narrow type."""
    if kind in INTEGERS:
        return Coded(kind, _narrow_integer(x, kind, saturate=False))
    if kind == "float8e8m0":
        return _powers(x, saturate, round_mode)
    wide = x.float()
    limits, codes, most = _thresholds(kind)
    size = wide.abs()
    index = Tensor(limits).searchsorted(size)  # thresholds below the size
    code = Tensor(codes)[index]
    is_fnuz, has_inf = kind.endswith("fnuz"), kind == "float8e5m2"
    top = Tensor(np.float32(most))
    step = _overflow(kind)
    if kind == "float4e2m1":
        sign = wide.signbit().cast(dtypes.uint8) * 8
        return Coded(kind, where(wide.isnan(), code._own(8), code + sign))
    nan = 0x80 if is_fnuz else 0x7F
    if saturate:
        code = where(size.gt(top), code._own(int(codes[-1])), code)
    else:
        over = size.gt(Tensor(np.float32(step)))
        code = where(over, code._own(0x7C if has_inf else nan), code)
    sign = wide.signbit().cast(dtypes.uint8) * 128
    sign = where(code.eq(0) | code.eq(0x80), sign._own(0), sign) if is_fnuz else sign
    coded = code | sign
    if saturate and has_inf:
        coded = where(wide.isinf(), coded._own(0x7B) | sign, coded)
    return Coded(kind, where(wide.isnan(), (coded._own(nan) | (sign if not is_fnuz else coded._own(0))), coded))


def _overflow(kind: str) -> float:
    """The size above which a value rounds to something beyond the greatest finite one."""
    values = _code_values(kind)[:128]
    good = np.sort(values[np.isfinite(values)]).astype(np.float64)
    return float(good[-1] + (good[-1] - good[-2]) / 2)


def _powers(x: Tensor, saturate: bool, round_mode: str) -> Coded:
    bits = x.float().abs().bitcast(dtypes.uint32)
    exponent, rest = bits >> 23, bits & 0x7FFFFF
    if round_mode == "up":
        exponent = where(rest.gt(0) & exponent.lt(254 if saturate else 255), exponent + 1, exponent)
    elif round_mode == "nearest":
        exponent = where(rest.ge(0x400000) & exponent.lt(254 if saturate else 255), exponent + 1, exponent)
    wide = x.float()
    code = where(wide.isinf(), exponent._own(254 if saturate else 255), exponent).cast(dtypes.uint8)
    return Coded("float8e8m0", where(wide.isnan(), code._own(255), code))


def _narrow_integer(x: Tensor, kind: str, saturate: bool) -> Tensor:
    bits, signed = INTEGERS[kind]
    least, most = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    whole = x.trunc().cast(dtypes.int32) if x.dtype.is_float else x.cast(dtypes.int32)
    whole = whole.clamp(least, most) if saturate else ((whole - least) & ((1 << bits) - 1)) + least
    return whole.cast(dtypes.int8 if signed else dtypes.uint8)


@operator("Cast")
def cast(x: Value, *, to: Any, saturate: int = 1, round_mode: str = "up") -> Value:
    code = int(onnx.TensorProto.DataType.Value(to)) if isinstance(to, str) else int(to)
    return converted(x, code, bool(saturate), round_mode)


@operator("CastLike")
def cast_like(x: Value, like: Value, *, saturate: int = 1, round_mode: str = "up") -> Value:
    return converted(x, code_of(like), bool(saturate), round_mode)


def converted(x: Value, code: int, saturate: bool = True, round_mode: str = "up") -> Value:
    """A value in another element type."""
    kind = type_name(code)
    if kind == "string":
        return Known(_texts(x))
    if isinstance(x, Known) and x.is_text:
        return _parsed_texts(x, kind, code)
    t = decoded(x) if isinstance(x, Coded) else tensor_of(x)
    dtype = dtype_of(code)
    if dtype is None:
        if kind.startswith("complex") or kind == "undefined":
            raise DTypeError(f"Cast: {kind} is not supported. Use real and imaginary parts on a last axis.")
        return encoded(t, kind, saturate, round_mode)
    if t.dtype.is_float and not dtype.is_float and not dtype.is_bool:
        t = t.trunc() if dtype.bits < 64 else t
    return t.ne(0) if dtype.is_bool and not t.dtype.is_bool else t.cast(dtype)


def _texts(x: Value) -> Any:
    if isinstance(x, Known) and x.is_text:
        return x.array
    array = (decoded(x) if isinstance(x, Coded) else tensor_of(x)).numpy()
    flat = [np.format_float_positional(v, trim="-") if array.dtype.kind == "f" else str(v) for v in array.ravel()]
    flat = [{"nan": "NaN", "inf": "INF", "-inf": "-INF"}.get(v, v) for v in flat]
    return np.array(flat, dtype=object).reshape(array.shape)


def _parsed_texts(x: Known, kind: str, code: int) -> Value:
    dtype = dtype_of(code)
    try:
        if dtype is not None and not dtype.is_float:
            flat = [int(float(v)) if not _is_int(v) else int(v) for v in x.array.ravel()]
            return Known(np.array(flat).astype(dtype.name).reshape(x.shape))
        array = np.array([float(v) for v in x.array.ravel()]).reshape(x.shape)
    except ValueError as error:
        raise DTypeError(f"Cast: a string is not a number: {error}. Change the model.") from None
    if dtype is None:
        return encoded(Tensor(array.astype(np.float32)), kind)
    return Known(tensor=Tensor(array).cast(dtype).realize())


def _is_int(text: str) -> bool:
    return text.strip().lstrip("+-").isdigit()
