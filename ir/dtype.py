"""Scalar and vector types: limits, promotion, NumPy names.

A `DType` is interned: `float32` is one object, and so is `float32.vec(16)`. Arithmetic on a vector type means lane by
lane. `index` is the type of loop variables and addresses while they are symbolic; lowering gives it a width.
"""

from __future__ import annotations

import math
import struct
from typing import Final, Literal, TypeAlias

from .process.errors import DTypeError

__all__ = ["DType", "DTypeLike", "as_dtype", "dtypes", "named_dtype", "promote", "round_float"]


Kind: TypeAlias = Literal["void", "bool", "uint", "int", "float", "index", "complex"]  # decides which ops take a type
_EPSILON: Final = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


def _limits(kind: Kind, bits: int) -> tuple[int | float, int | float]:
    """The least and the greatest value."""
    if kind in ("float", "complex"):
        return -math.inf, math.inf
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind in ("int", "index") else (0, (1 << bits) - 1)


class DType:
    """A type of `lanes` equal scalars. Compare with `is` or `==`; both are identity."""

    __slots__ = ("_vectors", "bits", "epsilon", "is_bool", "is_float", "is_index", "is_int", "is_signed", "kind",
                 "lanes", "max", "min", "name", "scalar", "size_bytes", "stored_as")  # fmt: skip

    def __init__(self, name: str, kind: Kind, bits: int, lanes: int = 1, scalar: DType | None = None) -> None:
        self.name: Final = name
        self.kind: Final = kind
        self.bits: Final = bits  # of one lane
        self.lanes: Final = lanes
        self.scalar: Final[DType] = scalar or self
        self.is_float: Final = kind == "float"
        self.is_int: Final = kind in ("int", "uint", "index")  # not bool
        self.is_signed: Final = kind in ("int", "index")
        self.is_index: Final = kind == "index"
        self.is_bool: Final = kind == "bool"
        self.min, self.max = _limits(kind, bits)  # of the scalar
        self.epsilon: Final = _EPSILON.get(self.scalar.name, 0.0)  # from 1 to the next value of a float
        self.size_bytes: Final = (bits + 7) // 8 * lanes  # of one value in memory, all lanes; a bool takes one byte
        self.stored_as: Final = "uint16" if name == "bfloat16" else name  # the NumPy dtype of a scalar in memory
        self._vectors: dict[int, DType] = {}

    def vec(self, lanes: int) -> DType:
        """This scalar type, `lanes` wide; 1 gives the scalar itself."""
        if lanes == 1:
            return self.scalar
        table = self.scalar._vectors
        if lanes not in table:  # setdefault: two threads may get here at once, and both must get the same object
            table.setdefault(lanes, DType(f"{self.scalar.name}x{lanes}", self.kind, self.bits, lanes, self.scalar))
        return table[lanes]

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, ...]:
        return named_dtype, (self.name,)


class _Constants(type):
    """The type of a namespace whose names keep their values."""

    def __setattr__(cls, name: str, value: object) -> None:
        raise DTypeError(
            f"dtypes.{name} = {value}: the dtypes and defaults are fixed. Pass dtype=, or cast the result."
        )


class dtypes(metaclass=_Constants):  # a namespace of constants, as in `dtypes.float32`
    """The scalar types. `default_float` and `default_int` are the dtypes of Python numbers and lists of them."""

    void: Final = DType("void", "void", 0)
    index: Final = DType("index", "index", 64)
    bool: Final = DType("bool", "bool", 1)
    int8: Final = DType("int8", "int", 8)
    int16: Final = DType("int16", "int", 16)
    int32: Final = DType("int32", "int", 32)
    int64: Final = DType("int64", "int", 64)
    uint8: Final = DType("uint8", "uint", 8)
    uint16: Final = DType("uint16", "uint", 16)
    uint32: Final = DType("uint32", "uint", 32)
    uint64: Final = DType("uint64", "uint", 64)
    float16: Final = DType("float16", "float", 16)
    bfloat16: Final = DType("bfloat16", "float", 16)
    float32: Final = DType("float32", "float", 32)
    float64: Final = DType("float64", "float", 64)

    complex64: Final = DType("complex64", "complex", 64)  # of a ComplexTensor: no node has one
    complex128: Final = DType("complex128", "complex", 128)

    # the names of C on 64-bit Linux, as in PyTorch and tinygrad; NumPy's "int" and "float" have 64 bits
    half: Final = float16
    float: Final = float32
    double: Final = float64
    char: Final = int8
    short: Final = int16
    int: Final = int32
    long: Final = int64
    byte: Final = uint8
    uchar: Final = uint8
    ushort: Final = uint16
    uint: Final = uint32
    ulong: Final = uint64

    data: Final = (bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, bfloat16, float32, float64)
    default_float: Final = float32
    default_int: Final = int64


_by_name: Final[dict[str, DType]] = {
    **{name: dtype for name, dtype in vars(dtypes).items() if isinstance(dtype, DType)},
    "bool_": dtypes.bool,
}
del _by_name["default_float"], _by_name["default_int"]


DTypeLike: TypeAlias = "DType | str | type"  # what as_dtype takes


def as_dtype(value: object) -> DType:
    """Return the dtype of a tensor from a DType, a name ("float32", "half"), a Python type or a NumPy dtype.

    Raises:
        DTypeError: unknown name, or a type that only the compiler uses.
    """
    if isinstance(value, DType):
        found: DType | None = value
    elif isinstance(value, type) and value in (float, int, bool):
        found = {float: dtypes.default_float, int: dtypes.default_int, bool: dtypes.bool}[value]
    else:
        name = value if isinstance(value, str) else getattr(value, "name", None) or getattr(value, "__name__", value)
        found = _by_name.get(str(name))
    if found is not None and found.kind == "complex":
        raise DTypeError(f"as_dtype({value!r}): a Tensor is real. Use kernmill.ComplexTensor(.., dtype={value!r}).")
    if found not in dtypes.data:
        known = ", ".join(dtype.name for dtype in dtypes.data)
        raise DTypeError(f"as_dtype({value!r}): kernmill has no such dtype. Use one of {known}.")
    return found


def named_dtype(name: str) -> DType:
    """Return the type of this name, including the compiler's own: "float32x16", "index", "void".

    Raises:
        LookupError, ValueError: unknown name.
    """
    if name in _by_name:
        return _by_name[name]
    scalar, _, lanes = name.rpartition("x")
    return _by_name[scalar].vec(int(lanes))


def promote(a: DType, b: DType) -> DType:
    """Return the smallest type that can represent both, as in PyTorch: a float beats an int of any width, float16 +
    bfloat16 is float32.

    Signed with unsigned of the same or larger width takes the next larger signed type; int64 with uint64 stays int64
    (NumPy returns float64, PyTorch raises an error).
    """
    if a is b:
        return a
    if a.is_float or b.is_float:
        if not (a.is_float and b.is_float):
            return a if a.is_float else b
        if a.bits == b.bits:
            return dtypes.float32
        return a if a.bits > b.bits else b
    if a.is_bool or b.is_bool:
        return b if a.is_bool else a
    if a.kind == b.kind:
        return a if a.bits >= b.bits else b
    signed, unsigned = (a, b) if a.is_signed else (b, a)
    if signed.bits > unsigned.bits:
        return signed
    return _by_name[f"int{min(64, unsigned.bits * 2)}"]


_FORMATS: Final = {dtypes.float16: "e", dtypes.float32: "f"}


def round_float(dtype: DType, value: float) -> float:
    """The nearest value of a scalar float dtype, ties to even; overflow gives inf."""
    if dtype is dtypes.float64 or not math.isfinite(value):
        return value
    if dtype is dtypes.bfloat16:
        bits = struct.unpack("<I", struct.pack("<f", round_float(dtypes.float32, value)))[0]
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return float(struct.unpack("<f", struct.pack("<I", bits))[0])
    try:
        return float(struct.unpack(_FORMATS[dtype], struct.pack(_FORMATS[dtype], value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)
