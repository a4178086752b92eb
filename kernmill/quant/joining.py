"""Merged weights: matrices that are multiplied by the same x become one matrix, with fewer launches and access streams.

Why: docs/topics/llm-inference.md. Tests: tests/kernmill/quant/test_joining.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..tensor_bytes import joined_in_memory
from .floats import FloatMatrix
from .tensor import QuantizedTensor

__all__ = ["joined"]


def joined(matrices: Sequence[object]) -> QuantizedTensor | FloatMatrix | None:
    """Return the rows of all as one matrix over the same memory. None if layouts or widths differ, a group of rows
    is incomplete, or they are not consecutive in memory. An arena stores them consecutively, in order of
    allocation."""
    laid = [matrix for matrix in matrices if isinstance(matrix, QuantizedTensor | FloatMatrix)]
    if len(laid) < len(matrices) or len({matrix.row_layout for matrix in laid}) != 1:
        return None
    first, rows = laid[0], [matrix.shape[0] for matrix in laid]
    if any(count % first.interleave for count in rows[:-1]):
        return None
    data = joined_in_memory([matrix.data for matrix in laid])
    return None if data is None else first.over(data, (sum(rows), *first.shape[1:]))
