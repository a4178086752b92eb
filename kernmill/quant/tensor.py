"""class QuantizedTensor: rows of weight blocks and their meaning, in the layout of a file or interleaved."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from math import prod
from typing import Any, Self

from kernmill.ir import DTypeError, ShapeError, dtypes, setting, show_shape
from kernmill.runtime import WeightArena, get_device

from ..arguments import with_sentences
from ..captures import Jit
from ..formats.gguf_types import TensorType
from ..lazy import device_name
from ..size import SymbolicSize
from ..tensor import Tensor
from ..tensor_bytes import in_new_memory
from .block import BlockType, Codes
from .interleave import SIDE, lay_in_pieces, side_of
from .matrix_unit import unit_for, unit_product
from .product import ACTIVATIONS, adds_bytes, in_use, product
from .registry import BLOCKS, block_type

__all__ = ["QuantizedTensor", "interleaved_bytes", "rows_together"]

_TURNS = 2  # alternate with the blocks of further rows, if the data read between them would evict x from the cache
_WORD = 4  # bytes that are copied together
_TABLE = 128  # bytes of a register table from which on codebook entries are looked up there and not in memory
_TILE = 2  # rows of x that share the lookups of one of them
_FEW = 2  # rows of a tile, up to which its matrix is read in place; more rows at a time read a copy of it

_Arranged = Callable[..., dict[str, Tensor]]


class QuantizedTensor:
    """Values stored as blocks of few bits. Computations use `dequantize()`, an expression like any other.

    Shapes: `shape` is that of the values. `data` has the same axes, the last one as [blocks, bytes of a block]. If rows
    are interleaved, its axes are [groups of rows, blocks, interleave * bytes of a block], the last group padded. Words
    are interleaved over 16 rows, with blocks of 32 rows alternating. Dtypes: `data` is uint8; the values are float32.
    """

    data: Tensor
    type: BlockType
    shape: tuple[int, ...]
    interleave: int
    side: int
    form: BlockType  # the type with the layout of the blocks in memory

    def __init__(
        self,
        data: Tensor,
        type: str | BlockType,
        shape: Sequence[int],
        *,
        interleave: int = 1,
        form: BlockType | None = None,
        side: int = SIDE,
    ) -> None:
        """Take bytes of any shape as the blocks of a tensor; with `interleave` rows interleaved, in the layout that the
        settings select unless one is given.

        Raises:
            ShapeError: rows that are not a multiple of the block size; wrong number of bytes; interleaved and neither
                a matrix nor a stack of matrices with whole groups of rows; `interleave` is neither 1 nor a multiple
                of 16.
            DTypeError: the data is not uint8.
        """
        self.type = block_type(type) if isinstance(type, str) else type
        self.shape, self.interleave, self.side = tuple(shape), interleave, side
        if data.dtype is not dtypes.uint8:
            raise DTypeError(f"QuantizedTensor: {self.type.name} blocks of {data.dtype.name}. Give bytes, as uint8.")
        if interleave > 1 and self.ndim != 2 and (self.ndim != 3 or self.shape[1] % interleave):
            raise ShapeError(
                f"QuantizedTensor: {self.type.name} of shape {show_shape(self.shape)} with {interleave} rows "
                f"interleaved: must have two axes, or three and a multiple of {interleave} rows. Give interleave=1."
            )
        if interleave > 1 and interleave % side:
            raise ShapeError(f"QuantizedTensor: {interleave} rows interleaved. Give 1, or a multiple of {side}.")
        self.form = form or (_interleaved_layout(self.type, data.device)[0] if interleave > 1 else self.type)
        wanted = (*self.shape[:-1], self._row_blocks("QuantizedTensor"), self.form.size_bytes)
        if interleave > 1:
            wanted = (-(-prod(self.shape[:-1]) // interleave), wanted[-2], interleave * wanted[-1])
        if data.uop.shape != wanted:
            if data.numel() != prod(wanted):
                raise ShapeError(
                    f"QuantizedTensor: {data.numel()} bytes for {self.type.name} of shape {show_shape(self.shape)}, "
                    f"which needs {prod(wanted)}. Give all of its blocks."
                )
            data = data.reshape(wanted)
        self.data = data

    def _row_blocks(self, call: str) -> int:
        row = self.shape[-1] if self.shape else 1
        if row % self.type.values:
            raise ShapeError(
                f"{call}: {self.type.name} of shape {show_shape(self.shape)}: rows of {row} values are not a "
                f"multiple of the block size {self.type.values}. Pad the last axis, or choose another type."
            )
        return row // self.type.values

    @classmethod
    @with_sentences
    def quantize(cls, x: Tensor, type: str | BlockType) -> Self:
        """Quantize a float tensor [.., n] to the nearest blocks, n being a multiple of the block size. Lazy, as every
        tensor is.

        Raises:
            ShapeError: rows that are not a multiple of the block size.
            FormatError: unknown type, or one that kernmill only reads.
        """
        kind = block_type(type) if isinstance(type, str) else type
        if not x.ndim or x.shape[-1] % kind.values:
            raise ShapeError(
                f"quantize: a tensor of shape {show_shape(x.uop.shape)} as {kind.name}: its rows are not a "
                f"multiple of the block size {kind.values}. Pad the last axis, or choose another type."
            )
        blocks = x.unflatten(-1, (x.shape[-1] // kind.values, kind.values))
        return cls(kind.encode(blocks), kind, x.shape)

    def interleaved(self, arena: WeightArena | None = None, kept: Tensor | None = None) -> Self:
        """Interleave 16 rows: word n of all of them, then word n + 1; long blocks alternate with those of 16 more
        rows if the device needs it. Products read this layout at memory speed. The copy is made now, with the
        same size (more with decoded values, see QUANT_FORM), in an arena if one is given; the last rows are
        padded. A stack of matrices is one matrix of all rows. Returns itself if it is already interleaved or empty.
        So does a tensor of other axes, and a stack whose matrices do not consist of groups of rows. `kept`: the
        `data` of an earlier result in the same layout, which is used instead of a new copy."""
        side, together = side_of(self.device), rows_together(self.type, self.device)
        is_stack = self.ndim == 3 and self.shape[1] % together == 0
        if self.interleave > 1 or not (self.ndim == 2 or is_stack) or not prod(self.shape):
            return self
        form, arranged = _interleaved_layout(self.type, self.device)
        data = self.data.flatten(0, -3)
        rows, blocks = data.shape[:2]
        groups = -(-rows // together)
        shape = (groups, blocks, together // side, side * form.size_bytes // _WORD, _WORD)
        for looked_up in {self.type, form}:
            _make_tables(looked_up, self.device)
        if kept is not None and kept.shape == (groups, blocks, prod(shape[2:])):
            return type(self)(kept, self.type, self.shape, interleave=together, form=form, side=side)
        laid = in_new_memory(dtypes.uint8, shape, self.device, arena)
        lay = partial(_interleaver, self.type, form, arranged, shape)
        lay_in_pieces(rows, self.shape[-1], together, lambda groups, first: lay(groups)(data, laid, first))
        return type(self)(laid.flatten(2), self.type, self.shape, interleave=together, form=form, side=side)

    def _codes(self, index: Tensor | None = None, matrices: Tensor | None = None, *, are_copied: bool = False) -> Codes:
        """Unpack all blocks, those of some rows, or those of some matrices of a stack, which may be copied first; the
        axis of interleaved rows becomes two or three."""
        if self.interleave == 1:
            return self.type.codes(self.data if index is None else self.data[index])
        kind = self.form
        sizes = kind.layout
        blocks = self.data
        if matrices is not None:
            blocks = blocks.unflatten(0, (self.shape[0], -1))[matrices]
            blocks = blocks.contiguous() if are_copied else blocks
        side = self.side
        if self.interleave > side:
            blocks = blocks.unflatten(-1, (self.interleave // side, -1)).transpose(-3, -2)
        parts = blocks.split([size * side for size in sizes.values()], axis=-1)
        rows = [
            part.unflatten(-1, (size // word, side, word)).movedim(-2, -4).flatten(-2)
            for part, size, word in zip(parts, sizes.values(), kind.words().values(), strict=True)
        ]
        if index is not None:
            rows = [part.flatten(0, -3)[: self.shape[0]][index] for part in rows]
        return kind.read(**dict(zip(sizes, rows, strict=True)))

    def dequantize(self) -> Tensor:
        """The values, float32 of `shape`."""
        values = self.form.values_of(self._codes())
        rows = prod(self.shape[:-1])
        return (values if self.interleave == 1 else values.flatten(0, -3)[:rows]).reshape(self.shape)

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x @ values.T + bias, accumulated block by block, in float32 (float64 for a float64 x).

        With QUANT_ACT=int8 the rows of a float32 or shorter x are rounded to 8 bits in blocks of 32 first (product.py).
        Shapes: x [.., n] and this [m, n] give [.., m]; bias [m].

        Raises:
            ShapeError: this does not have two axes, or their last axes differ.
        """
        if self.ndim != 2 or not x.ndim or x.shape[-1] != self.shape[-1]:
            own = f"{self.type.name} of shape {show_shape(self.shape)}"
            raise ShapeError(
                f"linear: x of shape {show_shape(x.uop.shape)} with {own}: the weight must have two axes, and its "
                "last axis must equal that of x. Reshape one."
            )
        codes, x, count = self._codes(), self.form.permuted(x), prod(x.shape[:-1])
        unit = unit_for(x) if self.interleave > 1 else None
        unit = unit if unit is not None and unit.n == self.interleave else None
        if self.interleave > 1 and self.form.looked_up and unit is None and _least(count) > _TILE:
            codes = _made_ahead(codes)
        if unit is not None:
            result = unit_product(x.reshape(count, x.shape[-1]), codes, unit)
        elif x.dtype.bits < 64 and x.dtype.is_float and not x.requires_grad and setting("QUANT_ACT") == "int8":
            result = product(x.reshape(count, x.shape[-1]), codes, self.form)
        else:
            result = self._float_product(x, codes)
        rows = prod(codes.scale.shape[:-2])
        result = result.reshape(*x.shape[:-1], rows)
        if (
            rows > self.shape[0] or self.interleave > self.side
        ):  # whole groups of rows, and nothing between their blocks
            result = result.contiguous()[..., : self.shape[0]]
        return result if bias is None else result + bias

    def chosen(self, x: Tensor, ids: Tensor, counts: Tensor | None = None) -> Tensor:
        """Multiply rows by the matrix of their tile: x[t] @ values[ids[t]].T. Only the blocks of these are read. With
        `counts` the result has zeros for the rows of a tile from its count on, and they are not computed.

        Shapes: x [tiles, rows, n], ids and counts [tiles], and this [matrices, m, n] give [tiles, rows, m]. Dtypes: as
        `linear`.

        Raises:
            ShapeError: the axes do not fit.
        """
        if (
            self.ndim != 3
            or x.ndim != 3
            or ids.ndim != 1
            or x.shape[-1] != self.shape[-1]
            or x.shape[0] != ids.shape[0]
        ):
            raise ShapeError(
                f"chosen: x of shape {show_shape(x.uop.shape)} and ids of shape {show_shape(ids.uop.shape)} with "
                f"{self.type.name} of shape {show_shape(self.shape)}: they must be (tiles, rows, n), (tiles,) and "
                "(matrices, m, n). Reshape one."
            )
        x = self.form.permuted(x)
        is_rounded = x.dtype.bits < 64 and x.dtype.is_float and not x.requires_grad and setting("QUANT_ACT") == "int8"
        is_copied = x.shape[1] > _FEW and not (is_rounded and adds_bytes(self.device))
        codes = self._codes(ids) if self.interleave == 1 else self._codes(matrices=ids, are_copied=is_copied)
        result = product(x, codes, self.form) if is_rounded else self._float_product(x, codes, tiles=1)
        if counts is not None:
            result = in_use(result, counts)
        result = result.reshape(*x.shape[:-1], self.shape[1])
        return result.contiguous() if self.interleave > SIDE else result  # nothing between the blocks of its rows

    def _float_product(self, x: Tensor, codes: Codes, tiles: int = 0) -> Tensor:
        """As product.product, in floats; with `tiles` the first axis of x and codes is the same."""
        axes = (self._row_blocks("linear"), *self.form.axes)
        last = tuple(range(-len(axes), 0))
        values = codes.values().unflatten(-1, self.form.axes)
        rows = values.shape[tiles : -len(axes)]
        values = values.unsqueeze(1) if tiles else values
        x = x.unflatten(-1, axes).reshape(*x.shape[:-1], *[1] * len(rows), *axes)
        return (x * values).sum(last)

    def rows(self, index: Tensor) -> Tensor:
        """The values of entries of the first axis, by an int tensor, as an embedding takes them: only their blocks are
        read. Shapes: index [..] and this [m, n] give [.., n]. Dtypes: float32.
        """
        return self.form.values_of(self._codes(index)).flatten(-2)

    # --- as a tensor
    @property
    def device(self) -> str:
        """The device of the blocks."""
        return self.data.device

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return self.data.numel()

    def over(self, data: Tensor, shape: Sequence[int]) -> Self:
        """Return a tensor of the same layout over other memory."""
        return type(self)(data, self.type, shape, interleave=self.interleave, form=self.form, side=self.side)

    @property
    def row_layout(self) -> Hashable:
        """The properties that matrices must share to be merged by rows."""
        return self.type, self.form, self.interleave, self.side, self.shape[1:]

    def to(self, device: str) -> Self:
        """The same blocks on another device."""
        return self.over(self.data.to(device), self.shape)

    def realize(self) -> Self:
        """Compute the blocks now."""
        self.data.realize()
        return self

    def __repr__(self) -> str:
        state = "" if self.data.is_realized else ", not realized"
        return f"<QuantizedTensor {show_shape(self.shape)} {self.type.name} on {self.device}{state}>"


def rows_together(kind: BlockType, device: str | None = None) -> int:
    """How many rows a group of `interleaved` has. Why: docs/topics/quantized-layouts.md."""
    target = get_device(device_name(device)).target
    return side_of(device_name(device)) * (
        _TURNS if target.has_hardware_prefetch and not target.units and kind.values > ACTIVATIONS else 1
    )


def interleaved_layout(type: TensorType, device: str | None = None) -> str:
    """Return a name of the layout of `interleaved` for tensors of a type on a device."""
    kind = BLOCKS.get(type.name)
    if kind is None:
        return type.name
    form, _ = _interleaved_layout(kind, device_name(device))
    side = side_of(device_name(device))
    words = f", words of {side}" if side > SIDE else ""
    return f"{kind.name} as {form.name}, {rows_together(kind, device)} rows{words}"


def interleaved_bytes(type: TensorType, shape: Sequence[int], device: str | None = None) -> int:
    """Return the bytes that `interleaved` takes for a matrix or a stack of them."""
    kind = BLOCKS.get(type.name)
    each = type.size_bytes if kind is None else _interleaved_layout(kind, device_name(device))[0].size_bytes
    together = SIDE if kind is None else rows_together(kind, device)
    return -(-prod(shape[:-1]) // together) * together * (shape[-1] // type.values) * each


def _least(count: Any) -> int:
    return count.bounds[0] if isinstance(count, SymbolicSize) else int(count)


def _made_ahead(codes: Codes) -> Codes:
    """Decode the quants of interleaved rows to memory, words of all rows interleaved, with their scales."""
    word = codes.codes.unflatten(-1, (-1, _WORD)).movedim(-4, -2).contiguous()
    scale = codes.scale.movedim(-3, -1).contiguous().movedim(-1, -3)
    return replace(codes, codes=word.movedim(-2, -4).flatten(-2), scale=scale)


def _interleaved_layout(kind: BlockType, device: str) -> tuple[BlockType, _Arranged]:
    """Return the interleaved layout on a device, and the function that makes its parts."""
    is_fast = setting("QUANT_FORM") == "fast" and adds_bytes(device)  # else decoding costs more than gathers
    is_held = get_device(device).target.table_bytes >= _TABLE
    return (kind.written if is_fast else None) or (kind.held if is_held else None) or kind.laid or (kind, dict)


@cache
def _make_tables(form: BlockType, device: str) -> None:
    """Make the lookup tables of a layout now: in a capture they would be leftover tensors, which cause a warning."""
    if form.looked_up or form.order[0]:
        form.codes(Tensor.zeros(1, form.size_bytes, dtype=dtypes.uint8, device=device))


@lru_cache(64)
def _interleaver(
    kind: BlockType, form: BlockType, arranged: _Arranged, shape: tuple[int, ...], groups: int
) -> Jit[[Tensor, Tensor, int], None]:
    """Return the function that interleaves rows of blocks [rows, blocks, bytes]: one for each shape of the program."""
    return Jit(partial(_lay, kind, form, arranged, groups), runs_first=False)


def _lay(
    kind: BlockType, form: BlockType, arranged: _Arranged, groups: int, data: Tensor, laid: Tensor, first: int
) -> None:
    """Interleave `groups` groups of rows from the first on: each part of the blocks separately, four bytes at a
    time."""
    side = laid.shape[3] * _WORD // form.size_bytes
    together = laid.shape[2] * side
    start = first * together
    rows = data[start : start + groups * together]
    rows = rows.pad([(0, groups * together - rows.shape[0]), (0, 0), (0, 0)])
    parts = arranged(**kind.parts(rows.unflatten(0, (groups, together // side, side))))
    at = 0
    for name, word in form.words().items():
        words = parts[name].unflatten(-1, (-1, word)).permute(0, 3, 1, 4, 2, 5).flatten(3)
        end = at + words.shape[-1] // _WORD
        laid[first : first + groups, :, :, at:end] = words.unflatten(-1, (-1, _WORD))
        laid.realize()
        at = end
