"""Elementwise operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernmill.ir import dtypes

from ..methods.elementwise import where
from ..tensor import Tensor
from .table import OPERATORS, aten, dtype_of

_METHODS = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh erf exp exp2 expm1 floor isinf isnan log log10 log1p log2 "
    "logical_not neg reciprocal relu round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc silu mish hardswish "
    "hardsigmoid bitwise_not square"
)
_TWO = (
    "mul maximum minimum atan2 eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor "
    "fmod remainder hypot copysign bitwise_left_shift bitwise_right_shift"
)


def _method(name: str) -> Callable[..., Tensor]:
    method = getattr(Tensor, name)
    return lambda *arguments: method(*arguments)


def _with_tensor(name: str) -> Callable[..., Tensor]:
    """A method of two operands, of which the first may be a number."""
    method = getattr(Tensor, name)
    return lambda a, b: method(a if isinstance(a, Tensor) else Tensor(a), b)


for _name in _METHODS.split():
    OPERATORS[f"aten.{_name}.default"] = _method(_name)
for _name in _TWO.split():
    for _kind in ("Tensor", "Scalar", "default", "Scalar_Tensor"):
        OPERATORS[f"aten.{_name}.{_kind}"] = _with_tensor(_name)


@aten("add.Tensor", "add.Scalar")
def add(a: Any, b: Any, alpha: float = 1) -> Any:
    """a + alpha * b."""
    return a + (b if alpha == 1 else b * alpha)


@aten("sub.Tensor", "sub.Scalar")
def sub(a: Any, b: Any, alpha: float = 1) -> Any:
    """a - alpha * b."""
    return a - (b if alpha == 1 else b * alpha)


@aten("rsub.Tensor", "rsub.Scalar")
def rsub(a: Any, b: Any, alpha: float = 1) -> Any:
    """b - alpha * a."""
    return sub(b, a, alpha)


@aten("div.Tensor", "div.Scalar", "true_divide.Tensor", "div.Tensor_mode", "div.Scalar_mode")
def div(a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    """A quotient, rounded if a mode says so."""
    if rounding_mode == "floor":
        return a // b
    if rounding_mode == "trunc":
        return Tensor.div(a, b, rounding_mode="trunc")
    return a / b


@aten("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def power(a: Any, b: Any) -> Any:
    """a to the power of b."""
    return a**b


@aten("gelu.default")
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """The exact formula, or that with tanh."""
    if approximate == "tanh":
        return 0.5 * x * (1 + (0.7978845608028654 * (x + 0.044715 * x * x * x)).tanh())
    return 0.5 * x * (1 + (x * 0.7071067811865476).erf())


@aten("elu.default")
def elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    """ELU with PyTorch's three factors."""
    return where(x > 0, x * scale, ((x * input_scale).expm1()) * (alpha * scale))


@aten("leaky_relu.default")
def leaky_relu(x: Tensor, slope: float = 0.01) -> Tensor:
    """x, or a slope times x where it is negative."""
    return where(x > 0, x, x * slope)


@aten("hardtanh.default", "clamp.default", "clamp.Tensor")
def clamp(x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    """x between two bounds."""
    if low is None or high is None:
        return x.maximum(low) if high is None else x.minimum(high)
    return x.maximum(low).minimum(high)


OPERATORS["aten.hardtanh.default"] = lambda x, low=-1.0, high=1.0: clamp(x, low, high)


@aten("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def choose(condition: Tensor, a: Any, b: Any) -> Tensor:
    """a or b by condition."""
    return where(condition, a, b)


@aten("clone.default", "alias.default", "detach.default", "lift_fresh_copy.default", "copy.default")
def clone(x: Tensor, source: Tensor | None = None, **_: Any) -> Tensor:
    """The same values; of `copy` those of the second operand."""
    return x if source is None else source.broadcast_to(x.shape)


@aten("_to_copy.default")
def to_copy(x: Tensor, dtype: Any = None, **_: Any) -> Tensor:
    """A cast."""
    kind = None if dtype is None else dtype_of(dtype)
    return x if kind is None else x.cast(kind)


OPERATORS["prims.convert_element_type.default"] = to_copy


# --- creation --------------------------------------------------------------------------------------------------------
@aten("full.default", "full_like.default", "new_full.default")
def full(shape: Any, value: Any, *more: Any, dtype: Any = None, **_: Any) -> Tensor:
    """One value everywhere, of a shape or of the shape of a tensor."""
    if more:  # new_full(x, shape, value)
        shape, value = value, more[0]
    sizes = shape.shape if isinstance(shape, Tensor) else tuple(shape)
    kind = dtype_of(dtype) if dtype is not None else None
    return Tensor.full(sizes, value, dtype=kind or (shape.dtype if isinstance(shape, Tensor) else None))


@aten("zeros.default", "zeros_like.default", "empty.memory_format", "empty_like.default")
def zeros(shape: Any, dtype: Any = None, **options: Any) -> Tensor:
    """Zeros, which are also allowed where PyTorch says that values are undefined."""
    return full(shape, 0, dtype=dtype, **options)


@aten("ones.default", "ones_like.default")
def ones(shape: Any, dtype: Any = None, **options: Any) -> Tensor:
    """Ones."""
    return full(shape, 1, dtype=dtype, **options)


@aten("scalar_tensor.default")
def scalar_tensor(value: Any, dtype: Any = None, **_: Any) -> Tensor:
    """A tensor without axes."""
    return Tensor.full((), value, dtype=dtype_of(dtype) if dtype is not None else None)


@aten("fill.Scalar", "fill.Tensor")
def fill(x: Tensor, value: Any) -> Tensor:
    """One value in the shape of x."""
    return value.broadcast_to(x.shape) if isinstance(value, Tensor) else Tensor.full(x.shape, value, dtype=x.dtype)


@aten("arange.start_step", "arange.default", "arange.start")
def arange(start: float, stop: float | None = None, step: float = 1, dtype: Any = None, **_: Any) -> Tensor:
    """Numbers with equal steps."""
    low, high = (0, start) if stop is None else (start, stop)
    return Tensor.arange(low, high, step, dtype=dtype_of(dtype) if dtype is not None else None)


@aten("tril_indices.default")
def tril_indices(rows: int, columns: int, offset: int = 0, **_: Any) -> Tensor:
    """The rows and columns of the lower triangle."""
    import numpy as np

    return Tensor(np.stack(np.tril_indices(rows, offset, columns)).astype(np.int64))


@aten("triu_indices.default")
def triu_indices(rows: int, columns: int, offset: int = 0, **_: Any) -> Tensor:
    """The rows and columns of the upper triangle."""
    import numpy as np

    return Tensor(np.stack(np.triu_indices(rows, offset, columns)).astype(np.int64))


@aten("tril.default")
def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """The lower triangle."""
    return x.tril(diagonal)


@aten("triu.default")
def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """The upper triangle."""
    return x.triu(diagonal)


@aten("isfinite.default")
def isfinite(x: Tensor) -> Tensor:
    """True for numbers that are not inf or nan."""
    return x.isfinite() if x.dtype.is_float else Tensor.full(x.shape, True, dtype=dtypes.bool)
