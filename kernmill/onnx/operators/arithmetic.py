"""Elementwise operators: arithmetic, comparisons, logic, bits and functions of one number."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from kernmill.ir import DTypeError, dtypes

from ...methods.elementwise import where
from ...tensor import Tensor
from ..table import operator, operators
from ..values import Coded, Host, Known, Value, dtype_of, tensor_of, type_name


def _aligned(a: Tensor, b: Tensor, axis: int | None, broadcast: int) -> tuple[Tensor, Tensor]:
    """The second input along the axes that versions before 7 named."""
    if not broadcast or axis is None:
        return a, b
    axis += a.ndim if axis < 0 else 0
    return a, b.reshape(*b.shape, *[1] * (a.ndim - axis - b.ndim))


def _register(name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    @operator(name)
    def run(a: Tensor, b: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor:
        return function(*_aligned(a, b, axis, broadcast))


def _div(a: Tensor, b: Tensor) -> Tensor:
    return a / b if a.dtype.is_float else a.div(b, rounding_mode="trunc")


def _pow(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype is b.dtype:
        return a**b
    wide = dtypes.float64 if not (a.dtype.is_float and b.dtype.is_float) else a.dtype
    return _to_dtype(a.cast(wide) ** b.cast(wide), a) if not a.dtype.is_float else a ** b.cast(a.dtype)


def _to_dtype(x: Tensor, like: Tensor) -> Tensor:
    return x.cast(like.dtype)


for _name, _function in {
    "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b, "Div": _div, "Pow": _pow,
    "And": lambda a, b: a & b, "Or": lambda a, b: a | b, "Xor": lambda a, b: a ^ b, "Equal": lambda a, b: a.eq(b),
    "Less": lambda a, b: a.lt(b), "Greater": lambda a, b: a.gt(b), "LessOrEqual": lambda a, b: a.le(b),
    "GreaterOrEqual": lambda a, b: a.ge(b), "PRelu": lambda a, b: where(a.lt(0), a * b, a),
}.items():  # fmt: skip
    _register(_name, _function)


@operator("Equal")
def equal(a: Value, b: Value, *, axis: int | None = None, broadcast: int = 0) -> Value:
    if isinstance(a, Known) and isinstance(b, Known) and (a.is_text or b.is_text):
        return Known(np.asarray(np.equal(a.array, b.array), dtype=bool))
    return tensor_of(a).eq(_aligned(tensor_of(a), tensor_of(b), axis, broadcast)[1])


def _log(x: Tensor) -> Tensor:
    return x.log()


def _round(x: Tensor) -> Tensor:
    return x.round()


operators(
    {
        "Abs": lambda x: x.abs(), "Neg": lambda x: -x, "Sign": lambda x: x.sign(), "Sqrt": lambda x: x.sqrt(),
        "Reciprocal": lambda x: 1 / x, "Exp": lambda x: x.exp(), "Log": _log, "Ceil": lambda x: x.ceil(),
        "Floor": lambda x: x.floor(), "Round": _round, "Sin": lambda x: x.sin(), "Cos": lambda x: x.cos(),
        "Tan": lambda x: x.tan(), "Asin": lambda x: x.asin(), "Acos": lambda x: x.acos(), "Atan": lambda x: x.atan(),
        "Sinh": lambda x: x.sinh(), "Cosh": lambda x: x.cosh(), "Tanh": lambda x: x.tanh(),
        "Asinh": lambda x: x.asinh(), "Acosh": lambda x: x.acosh(), "Atanh": lambda x: x.atanh(),
        "Erf": lambda x: x.erf() if x.dtype.is_float else x.float().erf().cast(x.dtype),
        "Not": lambda x: x.logical_not(), "BitwiseNot": lambda x: ~x, "IsNaN": lambda x: x.isnan(),
    }
)  # fmt: skip
operators(
    {"BitwiseAnd": lambda a, b: a & b, "BitwiseOr": lambda a, b: a | b, "BitwiseXor": lambda a, b: a ^ b}, inputs=2
)


@operator("Where")
def choose(condition: Tensor, a: Value, b: Value) -> Value:
    if isinstance(a, Known) and a.is_text and isinstance(b, Known):
        return Known(np.where(condition.numpy(), a.array, b.array))
    return where(condition, tensor_of(a), tensor_of(b))


@operator("IsInf")
def is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    return x.isinf(detect_positive=bool(detect_positive), detect_negative=bool(detect_negative))


@operator("Mod")
def mod(a: Tensor, b: Tensor, *, fmod: int = 0) -> Tensor:
    return a.fmod(b) if fmod else a.remainder(b)


@operator("BitShift")
def bit_shift(a: Tensor, b: Tensor, *, direction: str) -> Tensor:
    far = b.ge(a.dtype.bits) | b.lt(0)
    if direction == "LEFT":
        return where(far, a._own(0), a << where(far, b._own(0), b))
    gone = where(a.lt(0), a._own(-1), a._own(0)) if a.dtype.is_signed else a._own(0)
    return where(far, gone, a >> where(far, b._own(0), b))


@operator("Max")
def largest(first: Tensor, *others: Tensor) -> Tensor:
    return functools.reduce(lambda a, b: a.maximum(b), others, first)


@operator("Min")
def smallest(first: Tensor, *others: Tensor) -> Tensor:
    return functools.reduce(lambda a, b: a.minimum(b), others, first)


@operator("Sum")
def total(first: Tensor, *others: Tensor) -> Tensor:
    return functools.reduce(lambda a, b: a + b, others, first)


@operator("Mean")
def average(first: Tensor, *others: Tensor) -> Tensor:
    return total(first, *others) / (len(others) + 1)


@operator("Clip")
def clip(
    x: Tensor, low: Tensor | None = None, high: Tensor | None = None, *, min: float | None = None,
    max: float | None = None,
) -> Tensor:  # fmt: skip
    low, high = (x._own(min) if min is not None else low), (x._own(max) if max is not None else high)
    x = x if low is None else x.maximum(low)
    return x if high is None else x.minimum(high)


@operator("CumSum")
def cumulative_sum(x: Tensor, axis: Host, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    return _running(x, int(axis.item()), bool(exclusive), bool(reverse), Tensor.cumsum, 0)


@operator("CumProd")
def cumulative_product(x: Tensor, axis: Host, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    return _running(x, int(axis.item()), bool(exclusive), bool(reverse), Tensor.cumprod, 1)


def _running(
    x: Tensor, axis: int, exclusive: bool, reverse: bool, function: Callable[..., Tensor], start: int
) -> Tensor:
    if not x.numel():
        return x
    axis += x.ndim if axis < 0 else 0
    y = x.flip(axis) if reverse else x
    y = function(y, axis).cast(x.dtype)
    if exclusive:
        pairs = [(0, 0)] * x.ndim
        pairs[axis] = (1, -1)
        y = y.pad(pairs, value=start)
    return y.flip(axis) if reverse else y


@operator("MatMul")
def matmul(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


@operator("Gemm")
def gemm(
    a: Tensor, b: Tensor, c: Tensor | None = None, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0,
    transB: int = 0, broadcast: int = 0,
) -> Tensor:  # fmt: skip
    y = (a.T if transA else a) @ (b.T if transB else b)
    y = y if alpha == 1 else y * y._own(alpha)
    if c is None:
        return y
    return y + (c if beta == 1 else (c * beta).cast(y.dtype))


@operator("Einsum")
def einsum(first: Tensor, *others: Tensor, equation: str) -> Tensor:
    return first.einsum(*others, formula=equation.replace(" ", ""))


@operator("Det")
def det(x: Tensor) -> Tensor:
    """By elimination with row exchange, unrolled: matrices in models are small."""
    n = x.shape[-1]
    sign = x[..., 0, 0] * 0 + 1
    result, left = sign, x
    for k in range(n):
        column = left[..., :, 0].abs()
        best = column.argmax(-1).unsqueeze(-1)
        rows = Tensor.arange(n - k)
        pivot_row = left.gather(-2, best.unsqueeze(-1).expand(*left.shape[:-2], 1, n - k))
        swapped = where(rows.eq(best).unsqueeze(-1), left[..., :1, :], left)
        pivot = pivot_row[..., 0, 0]
        result = result * pivot * where(best.squeeze(-1).eq(0), sign, -sign)
        rest = swapped[..., 1:, :]
        factor = rest[..., :1] / where(pivot.eq(0), sign, pivot).unsqueeze(-1).unsqueeze(-1)
        left = (rest - factor * pivot_row)[..., 1:]
    return result


@operator("BitCast")
def bit_cast(x: Value, *, to: int) -> Value:
    dtype = dtype_of(to)
    if dtype is None or isinstance(x, Coded):
        raise DTypeError(f"BitCast: bits of {type_name(to)} are not supported. Open an issue.")
    t = tensor_of(x)
    if t.dtype.size_bytes != dtype.size_bytes:
        raise DTypeError(f"BitCast: {t.dtype.name} and {dtype.name} have different sizes. Change the model.")
    if t.dtype.is_bool:
        t = t.cast(dtypes.uint8)
    return t.ne(0) if dtype.is_bool else t.bitcast(dtype)
