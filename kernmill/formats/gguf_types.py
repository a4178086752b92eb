"""The types in GGUF files: of metadata values; of tensors, a row each: its number, and the sizes of its blocks.

Source: github.com/ggml-org/ggml, docs/gguf.md and include/ggml.h (`enum ggml_type`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from kernmill.ir import DType, FormatError, dtypes

__all__ = ["RETIRED", "TYPES", "TensorType", "ValueType", "tensor_type"]


class ValueType(IntEnum):
    """The type of a metadata value."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12

    @property
    def code(self) -> str:
        """The letter of `struct` for a number or a bool."""
        return _CODES[self]


_CODES = dict(zip(ValueType, "BbHhIif?__Qqd", strict=True))


@dataclass(frozen=True, slots=True)
class TensorType:
    """The storage of a tensor's values: blocks of `values` adjacent values of a row, in `size_bytes` bytes each."""

    number: int  # in the file
    name: str
    values: int  # of a block; rows are whole blocks
    size_bytes: int  # of a block
    dtype: DType | None = None  # of a plain type, whose blocks are single values

    def nbytes(self, shape: Sequence[int]) -> int:
        """Bytes of a tensor of this shape, whose last axis is a multiple of `values`."""
        return math.prod(shape) // self.values * self.size_bytes


# fmt: off
_ROWS = (
    # number, name, values, bytes, dtype
    (0, "F32", 1, 4, dtypes.float32),
    (1, "F16", 1, 2, dtypes.float16),
    (30, "BF16", 1, 2, dtypes.bfloat16),
    (28, "F64", 1, 8, dtypes.float64),
    (24, "I8", 1, 1, dtypes.int8),
    (25, "I16", 1, 2, dtypes.int16),
    (26, "I32", 1, 4, dtypes.int32),
    (27, "I64", 1, 8, dtypes.int64),
    (2, "Q4_0", 32, 18, None),
    (3, "Q4_1", 32, 20, None),
    (6, "Q5_0", 32, 22, None),
    (7, "Q5_1", 32, 24, None),
    (8, "Q8_0", 32, 34, None),
    (9, "Q8_1", 32, 36, None),
    (10, "Q2_K", 256, 84, None),
    (11, "Q3_K", 256, 110, None),
    (12, "Q4_K", 256, 144, None),
    (13, "Q5_K", 256, 176, None),
    (14, "Q6_K", 256, 210, None),
    (15, "Q8_K", 256, 292, None),
    (16, "IQ2_XXS", 256, 66, None),
    (17, "IQ2_XS", 256, 74, None),
    (18, "IQ3_XXS", 256, 98, None),
    (19, "IQ1_S", 256, 50, None),
    (20, "IQ4_NL", 32, 18, None),
    (21, "IQ3_S", 256, 110, None),
    (22, "IQ2_S", 256, 82, None),
    (23, "IQ4_XS", 256, 136, None),
    (29, "IQ1_M", 256, 56, None),
    (34, "TQ1_0", 256, 54, None),
    (35, "TQ2_0", 256, 66, None),
    (39, "MXFP4", 32, 17, None),
    (40, "NVFP4", 64, 36, None),
    (41, "Q1_0", 128, 18, None),
    (42, "Q2_0", 64, 18, None),
)
# fmt: on

TYPES: dict[int, TensorType] = {row[0]: TensorType(*row) for row in _ROWS}
RETIRED = frozenset({4, 5, 31, 32, 33, 36, 37, 38})  # numbers of layouts that no program writes any more
_BY_NAME = {row.name: row for row in TYPES.values()}


def tensor_type(name: str) -> TensorType:
    """Return the row of a type by its name, in upper or lower case.

    Raises:
        FormatError: unknown type.
    """
    found = _BY_NAME.get(name.upper())
    if found is None:
        raise FormatError(f"tensor type {name!r}: GGUF has no such type. It has {', '.join(_BY_NAME)}.")
    return found
