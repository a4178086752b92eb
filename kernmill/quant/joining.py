"""Matrices that one x is multiplied by, as one matrix: fewer launches, and one stream of memory in place of several.

Why: docs/topics/llm-inference.md. Tests: tests/kernmill/quant/test_joining.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..tensor_bytes import joined_in_memory
from .floats import FloatMatrix
from .tensor import QuantizedTensor

__all__ = ["joined"]


def joined(matrices: Sequence[object]) -> QuantizedTensor | FloatMatrix | None:
    """The rows of all as one matrix over the same memory, or None: they are not of one form and width, a group of rows
    is not whole, or one does not follow the other in memory. An arena puts them so, in the order in which they come."""
    laid = [matrix for matrix in matrices if isinstance(matrix, QuantizedTensor | FloatMatrix)]
    if len(laid) < len(matrices) or len({matrix.row_layout for matrix in laid}) != 1:
        return None
    first, rows = laid[0], [matrix.shape[0] for matrix in laid]
    if any(count % first.interleave for count in rows[:-1]):
        return None
    data = joined_in_memory([matrix.data for matrix in laid])
    return None if data is None else first.over(data, (sum(rows), *first.shape[1:]))
