"""class QuantizedTensor: rows of blocks and what they mean: a weight as it lies in its file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from kernmill.ir import DTypeError, ShapeError, dtypes, show_shape

from ..tensor import Tensor
from .block import BlockType
from .registry import block_type

__all__ = ["QuantizedTensor"]


class QuantizedTensor:
    """Values kept as blocks of few bits. What computes with them asks for `dequantize()`, an expression like any other.

    Shapes: `shape` is that of the values. `data` has the same axes, the last one as [blocks, bytes of a block].
    Dtypes: `data` is uint8; the values are float32.
    """

    data: Tensor
    type: BlockType
    shape: tuple[int, ...]

    def __init__(self, data: Tensor, type: str | BlockType, shape: Sequence[int]) -> None:
        """Take bytes of any shape as the blocks of a tensor.

        Raises:
            ShapeError: rows that are no whole blocks; another number of bytes.
            DTypeError: the data is not uint8.
        """
        self.type = block_type(type) if isinstance(type, str) else type
        self.shape = tuple(shape)
        if data.dtype is not dtypes.uint8:
            raise DTypeError(f"QuantizedTensor: {self.type.name} blocks of {data.dtype.name}. Give bytes, as uint8.")
        wanted = (*self.shape[:-1], self._row_blocks("QuantizedTensor"), self.type.size_bytes)
        if data.uop.shape != wanted:
            if data.numel() != self.nbytes:
                raise ShapeError(
                    f"QuantizedTensor: {data.numel()} bytes for {self.type.name} of shape {show_shape(self.shape)}, "
                    f"which takes {self.nbytes}. Give all of its blocks."
                )
            data = data.reshape(wanted)
        self.data = data

    def _row_blocks(self, call: str) -> int:
        row = self.shape[-1] if self.shape else 1
        if row % self.type.values:
            raise ShapeError(
                f"{call}: {self.type.name} of shape {show_shape(self.shape)}: rows of {row} values are no whole blocks "
                f"of {self.type.values}. Pad the last axis, or choose another type."
            )
        return row // self.type.values

    @classmethod
    def quantize(cls, x: Tensor, type: str | BlockType) -> Self:
        """The nearest blocks to a float tensor [.., n], n being whole blocks. Lazy, as every tensor is.

        Raises:
            ShapeError: rows that are no whole blocks.
            FormatError: no such type, or one that kernmill only reads.
        """
        kind = block_type(type) if isinstance(type, str) else type
        if not x.ndim or x.shape[-1] % kind.values:
            raise ShapeError(
                f"quantize: a tensor of shape {show_shape(x.uop.shape)} as {kind.name}: its rows are no whole blocks "
                f"of {kind.values} values. Pad the last axis, or choose another type."
            )
        blocks = x.unflatten(-1, (x.shape[-1] // kind.values, kind.values))
        return cls(kind.encode(blocks), kind, x.shape)

    def dequantize(self) -> Tensor:
        """The values, float32 of `shape`."""
        return self.type.decode(self.data).flatten(-2)

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x @ values.T + bias, the sums taken block by block, in float32 (float64 for a float64 x).

        Shapes: x [.., n] and this [m, n] give [.., m]; bias [m].

        Raises:
            ShapeError: this has not two axes, or their last axes differ.
        """
        if self.ndim != 2 or not x.ndim or x.shape[-1] != self.shape[-1]:
            own = f"{self.type.name} of shape {show_shape(self.shape)}"
            raise ShapeError(
                f"linear: x of shape {show_shape(x.uop.shape)} with {own}: the last axis of x is to be that of the "
                "weight, which has two axes. Reshape one."
            )
        axes = (self._row_blocks("linear"), *self.type.axes)
        last = tuple(range(-len(axes), 0))
        values = self.type.decode(self.data).unflatten(-1, self.type.axes)
        result = (x.unflatten(-1, axes).unsqueeze(-1 - len(axes)) * values).sum(last)
        return result if bias is None else result + bias

    def rows(self, index: Tensor) -> Tensor:
        """The values of entries of the first axis, by an int tensor, as an embedding takes them: only their blocks are
        read. Shapes: index [..] and this [m, n] give [.., n]. Dtypes: float32.
        """
        return self.type.decode(self.data[index]).flatten(-2)

    # --- as a tensor
    @property
    def device(self) -> str:
        """Where the blocks lie."""
        return self.data.device

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return self.type.type.nbytes(self.shape)

    def to(self, device: str) -> Self:
        """The same blocks on another device."""
        return type(self)(self.data.to(device), self.type, self.shape)

    def realize(self) -> Self:
        """Compute the blocks now."""
        self.data.realize()
        return self

    def __repr__(self) -> str:
        state = "" if self.data.is_realized else ", not realized"
        return f"<QuantizedTensor {show_shape(self.shape)} {self.type.name} on {self.device}{state}>"
