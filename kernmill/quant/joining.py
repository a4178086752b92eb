"""Matrices that one x is multiplied by, as one matrix: fewer launches, and one stream of memory in place of several.

Figures: docs/decisions/0090-joined-matrices.md. Tests: tests/kernmill/quant/test_joining.py.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ..tensor_bytes import joined_in_memory
from .floats import FloatMatrix
from .laying import SIDE
from .tensor import QuantizedTensor

__all__ = ["joined"]


def joined(matrices: Sequence[object]) -> QuantizedTensor | FloatMatrix | None:
    """The rows of all as one matrix over the same memory, or None: they are not of one form and width, a group of rows
    is not whole, or one does not follow the other in memory. An arena puts them so, in the order in which they come."""
    laid = [matrix for matrix in matrices if isinstance(matrix, QuantizedTensor | FloatMatrix)]
    if len(laid) < len(matrices) or len({_form(matrix) for matrix in laid}) != 1:
        return None
    first, rows = laid[0], [matrix.shape[0] for matrix in laid]
    if any(count % _together(first) for count in rows[:-1]):
        return None
    data, shape = joined_in_memory([matrix.data for matrix in laid]), (sum(rows), *first.shape[1:])
    if data is None:
        return None
    if isinstance(first, FloatMatrix):
        return FloatMatrix(data, shape)
    return QuantizedTensor(data, first.type, shape, interleave=first.interleave, form=first.form)


def _together(matrix: QuantizedTensor | FloatMatrix) -> int:
    return SIDE if isinstance(matrix, FloatMatrix) else matrix.interleave


def _form(matrix: QuantizedTensor | FloatMatrix) -> Hashable:
    """What matrices have in common whose rows can follow each other."""
    kind = None if isinstance(matrix, FloatMatrix) else (matrix.type, matrix.form)
    return kind, _together(matrix), matrix.shape[1:]
