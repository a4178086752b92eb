"""Dtypes of the standard, their limits and promotion, constants, and inspection of the namespace."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

from kernmill.ir import DType, DTypeError, SettingError, dtypes, promote
from kernmill.runtime import default_device, device_names

from ..complex_tensor import ComplexTensor
from ..tensor import Tensor

__all__ = [
    "astype", "bool", "can_cast", "complex64", "complex128", "e", "finfo", "float32", "float64", "iinfo", "inf",
    "int8", "int16", "int32", "int64", "isdtype", "nan", "newaxis", "pi", "result_type", "uint8", "uint16", "uint32",
    "uint64",
]  # fmt: skip

Array: TypeAlias = "Tensor | ComplexTensor"

e, inf, nan, pi, newaxis = math.e, math.inf, math.nan, math.pi, None
int8, int16, int32, int64 = dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64
uint8, uint16, uint32, uint64 = dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64
float32, float64, complex64, complex128 = dtypes.float32, dtypes.float64, dtypes.complex64, dtypes.complex128
bool = dtypes.bool

_KINDS: dict[str, tuple[DType, ...]] = {
    "bool": (bool,), "signed integer": (int8, int16, int32, int64), "unsigned integer": (uint8, uint16, uint32, uint64),
    "real floating": (dtypes.float16, dtypes.bfloat16, float32, float64), "complex floating": (complex64, complex128),
}  # fmt: skip
_KINDS["integral"] = _KINDS["signed integer"] + _KINDS["unsigned integer"]
_KINDS["numeric"] = _KINDS["integral"] + _KINDS["real floating"] + _KINDS["complex floating"]
_NAMES = {  # of the standard
    d.name: d for kind in ("bool", "integral", "complex floating") for d in _KINDS[kind]
} | {"float32": float32, "float64": float64}  # fmt: skip
_LEAST = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}
_MOST = {"float16": 65504.0, "bfloat16": 2.0**128 - 2.0**120, "float32": 2.0**128 - 2.0**104,
         "float64": math.nextafter(math.inf, 0.0)}  # fmt: skip


def is_complex(dtype: DType) -> Any:
    """True if a dtype is complex."""
    return dtype.kind == "complex"


def plane(dtype: DType) -> DType:
    """The dtype of the parts of a complex dtype; another dtype itself."""
    return {complex64: float32, complex128: float64}.get(dtype, dtype)


def joined_dtype(a: DType, b: DType) -> DType:
    """The promotion of two dtypes."""
    if is_complex(a) or is_complex(b):
        wide = promote(plane(a), plane(b))
        return complex128 if wide is float64 else complex64
    return promote(a, b)


def dtype_of(x: Any) -> DType:
    """The dtype of an array, or a dtype itself."""
    found = x if isinstance(x, DType) else getattr(x, "dtype", None)
    if not isinstance(found, DType):
        raise DTypeError(f"array_api: {type(x).__name__} is neither an array nor a dtype. Give Tensor(..).")
    return found


def ordered(x: Any, call: str) -> Any:
    """A real array.

    Raises:
        DTypeError: a complex array.
    """
    if isinstance(x, ComplexTensor):
        raise DTypeError(f"{call}: complex numbers have no order. Take real(x), imag(x) or abs(x).")
    return x


def astype(x: Array, dtype: DType, /, *, copy: Any = True, device: str | None = None) -> Array:
    """The values in another dtype. A complex array becomes complex only.

    Raises:
        DTypeError: a complex array in a real dtype.
    """
    if is_complex(dtype):
        made: Array = ComplexTensor(x, dtype=dtype)
    elif isinstance(x, ComplexTensor):
        raise DTypeError(f"astype: a {x.dtype.name} array as {dtype.name} would lose a part. Take real(x) or imag(x).")
    else:
        made = x.cast(dtype)
    made = made if device is None else made.to(device)
    return made.clone() if copy else made


def can_cast(from_: Any, to: DType, /) -> Any:
    """True if the promotion of both is the second."""
    own = dtype_of(from_)
    both_numbers = (own.kind == "bool") == (to.kind == "bool") or own is to
    whole_and_float = own.is_int and not to.is_int
    return both_numbers and not whole_and_float and joined_dtype(own, to) is to


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The dtype of an operation on arrays, dtypes and Python numbers, with at least one array or dtype."""
    strong = [dtype_of(x) for x in arrays_and_dtypes if not isinstance(x, (int, float, complex))]
    if not strong:
        raise DTypeError("result_type: only Python numbers. Give an array or a dtype.")
    result = strong[0]
    for dtype in strong[1:]:
        result = joined_dtype(result, dtype)
    for number in arrays_and_dtypes:
        if isinstance(number, complex) and not is_complex(result):
            result = joined_dtype(result, complex64)
        elif isinstance(number, float) and not isinstance(number, complex) and result.kind in ("bool", "int", "uint"):
            result = dtypes.default_float
        elif isinstance(number, int) and result.is_bool and type(number) is int:
            result = dtypes.default_int
    return result


def isdtype(dtype: DType, kind: Any) -> Any:
    """True if a dtype is another, of a kind such as "real floating", or one of several.

    Raises:
        SettingError: an unknown kind.
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    if isinstance(kind, DType):
        return dtype is kind
    if kind not in _KINDS:
        raise SettingError(f"isdtype: kind={kind!r}: must be a dtype or one of {', '.join(map(repr, _KINDS))}.")
    return dtype in _KINDS[kind]


@dataclass(frozen=True)
class FloatInfo:
    """Limits of a float dtype, or of the parts of a complex one."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True)
class IntInfo:
    """Limits of an int dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


def finfo(type: Any, /) -> FloatInfo:  # the standard's name
    """Limits of a float or complex dtype."""
    own = plane(dtype_of(type))
    if not own.is_float:
        raise DTypeError(f"finfo: {own.name} is not a float dtype. Use iinfo.")
    most = _MOST[own.name]
    return FloatInfo(own.bits, own.epsilon, most, -most, _LEAST[own.name], own)


def iinfo(type: Any, /) -> IntInfo:  # the standard's name
    """Limits of an int dtype."""
    own = dtype_of(type)
    if not own.is_int:
        raise DTypeError(f"iinfo: {own.name} is not an int dtype. Use finfo.")
    return IntInfo(own.bits, int(own.max), int(own.min), own)


class Info:
    """Capabilities, devices and dtypes of the namespace."""

    def capabilities(self) -> dict[str, Any]:
        """Masks and shapes that depend on values, which are computed when they are needed; at most 64 axes."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """The device of new arrays."""
        return default_device()

    def devices(self) -> list[str]:
        """The names of devices, whether they are available or not."""
        return sorted(device_names())

    def default_dtypes(self, *, device: str | None = None) -> dict[str, DType]:
        """The dtypes of Python numbers and of indices."""
        return {"real floating": dtypes.default_float, "complex floating": complex64, "integral": dtypes.default_int,
                "indexing": int64}  # fmt: skip

    def dtypes(self, *, device: str | None = None, kind: Any = None) -> dict[str, DType]:
        """The dtypes of the standard, by name; of a kind, or of several."""
        return {name: dtype for name, dtype in _NAMES.items() if kind is None or isdtype(dtype, kind)}


def __array_namespace_info__() -> Info:
    """Return the capabilities, devices and dtypes of the namespace."""
    return Info()
