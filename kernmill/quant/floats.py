"""class FloatMatrix: a float weight with interleaved rows, the fastest layout for products.

Few rows of x by a matrix in file layout either wait for memory at the end of each row, or need a horizontal reduction
per result. Here the rows are lanes: one value of x serves 16 of them, and the matrix is read sequentially; products of
many rows find their panels packed. If the device has dot products of pairs of bfloat16, adjacent values of a row stay
together, and products of many rows use them, with x rounded to bfloat16. Why: docs/topics/quantized-layouts.md. Tests:
tests/kernmill/quant/test_floats.py.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache, partial
from math import prod
from typing import Self

from kernmill.ir import DType, GradientError, ShapeError, dtypes, show_shape
from kernmill.runtime import WeightArena, get_device

from ..captures import Jit
from ..lazy import device_name, is_grad_enabled
from ..tensor import Tensor
from ..tensor_bytes import in_new_memory
from .interleave import SIDE, lay_in_pieces
from .matrix_unit import float_unit, is_rounded
from .product import in_use

__all__ = ["FloatMatrix", "prefers_interleaved_rows"]

_PAIRED_ROWS = 16  # of x, from which on dot products of pairs of bfloat16 pay


class FloatMatrix:
    """A matrix of floats: word n of 16 rows, then word n + 1 of them; a word is one value, or two of bfloat16.

    Shapes: `shape` is that of the matrix, (out, in), or of a stack, (matrices, out, in);
    `data` is [groups of rows, words, 16, values of a word], the last group filled up.
    Dtypes: `data` has a float dtype of at most 32 bits; rows are float32.
    """

    data: Tensor
    shape: tuple[int, ...]
    interleave = SIDE

    def __init__(self, data: Tensor, shape: Sequence[int]) -> None:
        self.data, self.shape = data, tuple(shape)

    @classmethod
    def of(cls, matrix: Tensor, arena: WeightArena | None = None, kept: Tensor | None = None) -> Self:
        """Copy the values of a matrix [m, n], or of a stack of them, interleaved, now: to new memory, or to an arena if
        one is given. `kept`: the `data` of an earlier result in the same layout, which is used instead.

        Raises:
            ShapeError: it is neither a matrix nor a stack of matrices with whole groups of 16 rows.
            GradientError: it depends on a tensor with requires_grad, outside of no_grad().
        """
        shown = show_shape(matrix.uop.shape)
        if matrix.ndim != 2 and (matrix.ndim != 3 or matrix.shape[1] % SIDE):
            raise ShapeError(
                f"FloatMatrix: shape {shown} is neither a matrix nor a stack of them. Give a tensor of two axes, or "
                f"of three with a multiple of {SIDE} rows."
            )
        if matrix.requires_grad and is_grad_enabled():
            raise GradientError(
                f"FloatMatrix.of: a matrix of shape {shown} with requires_grad: the values are copied, and no "
                "gradient flows back. Pass .detach()."
            )
        shape, matrix = matrix.shape, matrix.flatten(0, -2)
        rows, n = matrix.shape
        word = 2 if n % 2 == 0 and _has_pairs(matrix.dtype, matrix.device) else 1
        full = (-(-rows // SIDE), n // word, SIDE, word)
        if kept is not None and (kept.dtype, kept.shape) == (matrix.dtype, full):
            return cls(kept, shape)
        laid = in_new_memory(matrix.dtype, full, matrix.device, arena)
        lay = partial(_interleaver, matrix.dtype, matrix.device, matrix.shape)
        lay_in_pieces(rows, n, SIDE, lambda groups, first: lay(groups)(matrix, laid, first))
        return cls(laid, shape)

    def linear(self, x: Tensor) -> Tensor:
        """Return x @ self.T, accumulated in float32, for float64 x in float64. With QUANT_ACT=int8 the values of 16 or
        more rows of x are rounded to bfloat16 if pairs are used. Shapes: x [.., n] and this [m, n] give [.., m].

        Raises:
            ShapeError: the last axes differ.
        """
        rows, n = self.shape
        if not x.ndim or x.shape[-1] != n:
            raise ShapeError(
                f"linear: x of shape {show_shape(x.uop.shape)} with a matrix of shape {show_shape(self.shape)}: "
                "the last axes must be equal. Reshape one."
            )
        groups, words, _, word = self.data.shape
        if word > 1 and is_rounded(x, _PAIRED_ROWS):
            x = x.cast(self.data.dtype).contiguous().float()
        sums = (x.reshape(prod(x.shape[:-1]), 1, words, 1, word) * self.data.float()).sum((-3, -1))
        result = sums.reshape(*x.shape[:-1], groups * SIDE)
        return result if rows % SIDE == 0 else result.contiguous()[..., :rows]

    def chosen(self, x: Tensor, ids: Tensor, counts: Tensor | None = None) -> Tensor:
        """Multiply rows by the matrix of their tile: x[t] @ self[ids[t]].T. Only the values of these are read. With
        `counts` the result has zeros for the rows of a tile from its count on.

        Shapes: x [tiles, rows, n], ids and counts [tiles], and this [matrices, m, n] give [tiles, rows, m]. Dtypes: as
        `linear`.

        Raises:
            ShapeError: the axes do not fit.
        """
        if len(self.shape) != 3 or x.ndim != 3 or x.shape[-1] != self.shape[-1] or x.shape[:1] != ids.shape:
            raise ShapeError(
                f"chosen: x of shape {show_shape(x.uop.shape)} and ids of shape {show_shape(ids.uop.shape)} with a "
                f"stack of shape {show_shape(self.shape)}: they must be (tiles, rows, n), (tiles,) and "
                "(matrices, m, n). Reshape one."
            )
        tiles, rows, _ = x.shape
        _, words, _, word = self.data.shape
        picked = self.data.unflatten(0, (self.shape[0], -1))[ids].contiguous().unsqueeze(1).float()
        sums = (x.reshape(tiles, rows, 1, words, 1, word) * picked).sum((-3, -1))
        result = sums.reshape(tiles, rows, self.shape[1])
        return result if counts is None else in_use(result, counts)

    def rows(self, index: Tensor) -> Tensor:
        """The values of some rows. Shapes: index [..] and this [m, n] give [.., n]. Dtypes: ints to float32."""
        return self.data.transpose(1, 2).flatten(0, 1)[: self.shape[0]][index].flatten(-2).float()

    def over(self, data: Tensor, shape: Sequence[int]) -> Self:
        """Return a matrix of the same layout over other memory."""
        return type(self)(data, shape)

    @property
    def device(self) -> str:
        """The device of the values."""
        return self.data.device

    @property
    def row_layout(self) -> Hashable:
        """The properties that matrices must share to be merged by rows."""
        return self.data.dtype, self.shape[1:]

    @property
    def nbytes(self) -> int:
        """The bytes of all values, including the padding of the last group."""
        return self.data.numel() * self.data.dtype.size_bytes

    def __repr__(self) -> str:
        return f"<FloatMatrix {show_shape(self.shape)} {self.data.dtype.name} on {self.data.device}>"


def prefers_interleaved_rows(dtype: DType | None, device: str | None = None) -> bool:
    """True if a device reads matrices of a dtype faster interleaved: CPUs without a matrix unit for halves."""
    name = device_name(device)
    is_narrow = dtype is not None and dtype.is_float and dtype.bits <= 32
    return is_narrow and get_device(name).target.has_threads and float_unit(name) is None


def _has_pairs(dtype: DType, device: str) -> bool:
    return dtype is dtypes.bfloat16 and (dtype, dtype) in get_device(device).target.dots


@lru_cache(64)
def _interleaver(dtype: DType, device: str, shape: tuple[int, ...], groups: int) -> Jit[[Tensor, Tensor, int], None]:
    """Return the function that interleaves `groups` groups of rows of such a matrix."""
    return Jit(partial(_lay, groups), runs_first=False)


def _lay(groups: int, matrix: Tensor, laid: Tensor, first: int) -> None:
    start = first * SIDE
    rows = matrix[start : start + groups * SIDE]
    rows = rows.pad([(0, groups * SIDE - rows.shape[0]), (0, 0)])
    words = rows.reshape(groups, SIDE, *laid.shape[1::2])
    laid[first : first + groups] = words.transpose(1, 2)
    laid.realize()
