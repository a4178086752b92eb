"""Elementwise functions: each calls the method or operator of the arrays. One of two operands may be a number."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from kernmill.ir import DTypeError, dtypes

from ..complex_tensor import ComplexTensor
from ..tensor import Tensor
from .creation import asarray
from .dtypes import Array, ordered, result_type

_UNARY = {  # the standard's name: ours
    "abs": "abs", "acos": "acos", "acosh": "acosh", "asin": "asin", "asinh": "asinh", "atan": "atan", "atanh": "atanh",
    "bitwise_invert": "bitwise_not", "ceil": "ceil", "cos": "cos", "cosh": "cosh", "exp": "exp", "expm1": "expm1",
    "floor": "floor", "isfinite": "isfinite", "isinf": "isinf", "isnan": "isnan", "log": "log", "log1p": "log1p",
    "log2": "log2", "log10": "log10", "logical_not": "logical_not", "negative": "__neg__", "reciprocal": "reciprocal",
    "sign": "sign", "signbit": "signbit", "sin": "sin", "sinh": "sinh", "square": "square", "sqrt": "sqrt",
    "tan": "tan", "tanh": "tanh", "trunc": "trunc",
}  # fmt: skip
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "bitwise_and": operator.and_, "bitwise_left_shift": operator.lshift,
    "bitwise_or": operator.or_, "bitwise_right_shift": operator.rshift, "bitwise_xor": operator.xor,
    "divide": operator.truediv, "equal": operator.eq, "floor_divide": operator.floordiv, "greater": operator.gt,
    "greater_equal": operator.ge, "less": operator.lt, "less_equal": operator.le, "multiply": operator.mul,
    "not_equal": operator.ne, "pow": operator.pow, "remainder": operator.mod, "subtract": operator.sub,
}  # fmt: skip
_BINARY = {
    "atan2": "atan2", "copysign": "copysign", "hypot": "hypot", "logaddexp": "logaddexp", "logical_and": "logical_and",
    "logical_or": "logical_or", "logical_xor": "logical_xor", "maximum": "maximum", "minimum": "minimum",
    "nextafter": "nextafter",
}  # fmt: skip

__all__ = ["clip", "conj", "imag", "positive", "real", "round", "where", *_UNARY, *_OPERATORS, *_BINARY]  # pyright: ignore[reportUnsupportedDunderAll]


def checked(x: Any, call: str) -> Array:
    """An argument that must be an array."""
    if not isinstance(x, (Tensor, ComplexTensor)):
        raise DTypeError(f"{call}: {type(x).__name__} is not an array of this namespace. Give asarray(..).")
    return x


def arrays(a: Any, b: Any, call: str) -> tuple[Any, Any]:
    """Two operands as arrays; a number takes the dtype of the other."""
    if isinstance(a, (int, float, complex)):
        return asarray(a, dtype=result_type(checked(b, call), a), device=b.device), b
    if isinstance(b, (int, float, complex)):
        return a, asarray(b, dtype=result_type(checked(a, call), b), device=a.device)
    return checked(a, call), checked(b, call)


def _of_one(name: str, method: str) -> Callable[..., Any]:
    def function(x: Array, /) -> Array:
        return getattr(checked(x, name), method)()  # type: ignore[no-any-return]

    return function


def _by_operator(name: str, of_two: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def function(x1: Any, x2: Any, /) -> Array:
        if not isinstance(x1, (int, float, complex)):
            checked(x1, name)
        if not isinstance(x2, (int, float, complex)):
            checked(x2, name)
        return of_two(x1, x2)  # type: ignore[no-any-return]

    return function


def _of_two(name: str, method: str) -> Callable[..., Any]:
    def function(x1: Any, x2: Any, /) -> Array:
        a, b = arrays(x1, x2, name)
        return getattr(a, method)(b)  # type: ignore[no-any-return]

    return function


def _define(table: Mapping[str, Any], make: Callable[[str, Any], Any]) -> None:
    for name, ours in table.items():
        made = make(name, ours)
        made.__name__ = made.__qualname__ = name
        made.__doc__ = f"The standard's `{name}`, element by element."
        globals()[name] = made


_define(_UNARY, _of_one)
_define(_OPERATORS, _by_operator)
_define(_BINARY, _of_two)


def positive(x: Array, /) -> Array:
    """The values themselves."""
    return checked(x, "positive").clone()


def conj(x: Array, /) -> Array:
    """The conjugate; a real array itself."""
    return x.conj() if isinstance(checked(x, "conj"), ComplexTensor) else x.clone()  # type: ignore[union-attr]


def real(x: Array, /) -> Array:
    """The real part."""
    return x.real if isinstance(checked(x, "real"), ComplexTensor) else x.clone()  # type: ignore[union-attr]


def imag(x: Array, /) -> Array:
    """The imaginary part; 0 of a real array."""
    return x.imag if isinstance(checked(x, "imag"), ComplexTensor) else x.zeros_like()  # type: ignore[union-attr]


def round(x: Array, /) -> Array:
    """The nearest integer, ties to even; of both parts of a complex array."""
    if isinstance(checked(x, "round"), ComplexTensor):
        return ComplexTensor(x.real.round(), x.imag.round())  # type: ignore[union-attr]
    return x.round()


def clip(x: Array, /, min: Any = None, max: Any = None) -> Array:
    """Values between bounds, in the dtype of the array."""
    own: Any = ordered(checked(x, "clip"), "clip")
    result: Any = own.clamp(min, max)
    return result if result.dtype is own.dtype else result.cast(own.dtype)  # type: ignore[no-any-return]


def where(condition: Array, x1: Any, x2: Any, /) -> Array:
    """The values of the first where the condition is true, else of the second."""
    a, b = arrays(x1, x2, "where")
    test: Any = checked(condition, "where")
    if test.dtype is not dtypes.bool:
        raise DTypeError(f"where: a condition of dtype {test.dtype.name}: must be bool.")
    if isinstance(a, ComplexTensor) or isinstance(b, ComplexTensor):
        a, b = ComplexTensor(a), ComplexTensor(b)
        return ComplexTensor(a.real.where(test, b.real), a.imag.where(test, b.imag))
    return a.where(test, b)  # type: ignore[no-any-return]
