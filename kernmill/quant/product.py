"""Products with quantized weights: the rows of x as int8 blocks, integer sums, scales once per group.

Let `x = t * a` and `w = s * (c - z) + o`: t is the scale of 32 values of x, and s, z, o belong to a group of w. Then a
group adds `s * t * (sum(a * c) - z * sum(a)) + o * t * sum(a)` to the result. The sums are exact in int32. z * sum(a)
and t * sum(a) are the same for all rows of w and are computed once, with a. Tests:
tests/kernmill/quant/test_product.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from kernmill.ir import dtypes
from kernmill.runtime import get_device

from ..methods.elementwise import where
from ..tensor import Tensor
from .block import BlockType, Codes

__all__ = ["ACTIVATIONS", "Rows", "adds_bytes", "in_use", "product", "quantized_rows", "rows_of_tile"]

ACTIVATIONS = 32  # values of x that share a scale
_LEAST = 1e-30  # blocks of x below this magnitude count as zeros: quotients by it are finite
_BYTE_PAIRS = {(dtypes.uint8, dtypes.int8), (dtypes.int8, dtypes.int8)}
_FEW = 4  # rows of a tile whose sums are in registers at once
_WORD = 4  # bytes that a dot product takes at once


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of quantized activations: about scale * codes.

    Shapes: codes [.., blocks, ACTIVATIONS], scale [.., blocks, 1]. Dtypes: int8 from -127 to 127, float32.
    """

    codes: Tensor
    scale: Tensor


def adds_bytes(device: str) -> bool:
    """True if the device has dot products of bytes."""
    return not _BYTE_PAIRS.isdisjoint(get_device(device).target.dots)


def has_float_vectors(device: str) -> bool:
    """True if the device has vectors of float32, or no vectors at all."""
    target = get_device(device).target
    return target.lanes(dtypes.float32) >= target.lanes(dtypes.int32)


def _as_signed(codes: Tensor) -> bool:
    """True if the device multiplies signed bytes by signed ones, and the quants are such: no offset is needed then."""
    is_direct = (dtypes.int8, dtypes.int8) in get_device(codes.device).target.dots
    return is_direct and (codes.dtype is dtypes.int8 or codes.uop.bounds[1] <= dtypes.int8.max)


def quantized_rows(x: Tensor) -> Rows:
    """Quantize each block by its largest magnitude: [.., n], n a multiple of ACTIVATIONS.

    Non-finite values: the scale of a block with nan is nan. With an infinity it is infinite, with codes -127 and 127
    for infinities and 0 for the rest.
    """
    blocks = x.float().unflatten(-1, (x.shape[-1] // ACTIVATIONS, ACTIVATIONS))
    most = blocks.abs().max(-1, keepdim=True)
    scale = where(most.lt(_LEAST), most._filled(0.0), most / 127).contiguous()
    near = (blocks * where(most.lt(_LEAST), most._filled(0.0), 127 / most)).round()
    ends = where(blocks.abs().eq(float("inf")), where(blocks.lt(0), near._filled(-127.0), near._filled(127.0)), near)
    codes = where(ends.ne(ends), near._filled(0.0), ends).cast(dtypes.int8).contiguous()
    return Rows(codes, scale)


def product(x: Tensor, codes: Codes, kind: BlockType) -> Tensor:
    """Sum over all values of all blocks.

    Shapes: x [rows, n] and codes [*m, blocks, values] give [rows, *m]; x [tiles, rows, n] and codes
    [tiles, *m, blocks, values] give [tiles, rows, *m]. Dtypes: float32.
    """
    rows = quantized_rows(x)
    lead, axis = x.shape[:-1], x.ndim - 2
    groups, around = codes.scale.shape[-1], codes.codes.ndim - 2 - axis
    group = kind.values // groups
    run = min(group, ACTIVATIONS)  # values that share both scales are summed in int32
    outer, inner = _cut(kind.axes, run)
    blocks = codes.codes.shape[-2]

    def of_x(part: Tensor, *last: int) -> Tensor:
        return part.reshape(*lead, *[1] * around, blocks, *outer, *last)

    def of_groups(part: Tensor) -> Tensor:
        runs = part.unsqueeze(-1).expand(*part.shape, group // run).flatten(-2)
        return runs.unflatten(-1, outer).unsqueeze(axis)

    def per_run(part: Tensor) -> Tensor:
        return part.expand(*part.shape[:-1], ACTIVATIONS // run)

    quants, zero = codes.codes, codes.zero
    if _as_signed(quants):
        quants = quants.bitcast(dtypes.int8)
    elif quants.dtype is dtypes.int8:
        quants, zero = quants.bitcast(dtypes.uint8) ^ 128, zero + 128
    sums = rows.codes.unflatten(-1, (ACTIVATIONS // run, run)).sum(-1, dtype=dtypes.int32)
    last = tuple(range(-len(inner), 0))
    terms = quants.unflatten(-1, (*outer, *inner)).unsqueeze(axis).cast(dtypes.int32)
    total = (terms * of_x(rows.codes, *inner).cast(dtypes.int32)).sum(last, dtype=dtypes.int32)
    if not has_float_vectors(quants.device):  # then sums of bytes are vectors only in a kernel without floats
        rows_axis = axis + around  # the innermost axis in memory: interleaved rows are lanes
        total = total.movedim(rows_axis, -1).contiguous().movedim(-1, rows_axis)
    if zero:
        total = total + of_x((sums * -zero).contiguous())
    scale = of_x(per_run(rows.scale))
    result = of_groups(codes.scale) * scale * total.float()
    if codes.offset is not None:
        result = result + of_groups(codes.offset) * of_x((per_run(rows.scale) * sums.float()).contiguous())
    return result.sum(tuple(range(-1 - len(outer), 0)))


def rows_of_tile(most: int, matrix_bytes: int, device: str) -> int:
    """Return how many rows to multiply by one matrix of a stack at a time: few, where it stays in a core's cache."""
    return min(most, _FEW) if matrix_bytes <= get_device(device).target.l2_bytes else most


def in_use(result: Tensor, counts: Tensor) -> Tensor:
    """Zeros for the rows of a tile from its count on: these are not computed. Shapes: (tiles, rows, ..), (tiles,)."""
    rows = Tensor.arange(result.shape[1]).reshape(-1, *[1] * (result.ndim - 2))
    return where(rows.lt(counts.reshape(-1, *[1] * (result.ndim - 1))), result, result._filled(0.0))


def _cut(axes: tuple[int, ...], run: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Split the axes of a block into those over its runs and those inside of one, the last of these split into
    words."""
    outer, inner = list(axes), list[int]()
    while prod(inner) < run:
        size = min(outer[-1], run // prod(inner))
        outer, inner = [*outer[:-1], outer[-1] // size], [size, *inner]
        if outer[-1] == 1:
            outer.pop()
    return tuple(outer) or (1,), (*inner[:-1], inner[-1] // _WORD, _WORD)
