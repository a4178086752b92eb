"""Matrices that one x is multiplied by, as one matrix: fewer launches, and one stream of memory in place of several.

Figures: docs/decisions/0090-joined-matrices.md. Tests: tests/kernmill/quant/test_joining.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..tensor_bytes import joined_in_memory
from .floats import FloatMatrix
from .laying import SIDE
from .tensor import QuantizedTensor

__all__ = ["joined"]


def joined(matrices: Sequence[object]) -> QuantizedTensor | FloatMatrix | None:
    """The rows of all as one matrix over the same memory, or None: they are not of one form and width, a group of rows
    is not whole, or one does not follow the other in memory. An arena puts them so, in the order in which they come."""
    forms = {_form(matrix) for matrix in matrices}
    first, together = matrices[0], forms.pop()[-1]
    if forms or not isinstance(first, QuantizedTensor | FloatMatrix):
        return None
    alike: list[Any] = [*matrices]
    rows = [matrix.shape[0] for matrix in alike]
    data = None if any(count % together for count in rows[:-1]) else joined_in_memory([m.data for m in alike])
    if data is None:
        return None
    shape = (sum(rows), first.shape[1])
    if isinstance(first, FloatMatrix):
        return FloatMatrix(data, shape)
    return QuantizedTensor(data, first.type, shape, interleave=together, form=first.form)


def _form(matrix: object) -> tuple[Any, ...]:
    """What matrices have in common whose rows can follow each other; how many rows a group has comes last."""
    if isinstance(matrix, QuantizedTensor):
        return matrix.type, matrix.form, matrix.shape[1:], matrix.interleave
    return (matrix.shape[1], SIDE) if isinstance(matrix, FloatMatrix) else (0,)
