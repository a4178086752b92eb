"""Products of many rows with weights through a matrix unit, which multiplies tiles of halves: bfloat16, float16.

Weights are decoded once for all rows, in the tile order of the unit. x is rounded to the unit's dtype, with a smaller
error than the 8 bits of product.py. A float16 weight is not a bfloat16: without a unit for it, weight and x are each
split into high and low parts. Three of the four high/low products give float32 accuracy minus 7 bits. Why:
docs/topics/matrix-units.md. Tests: tests/kernmill/quant/test_matrix_unit.py.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from kernmill.ir import DType, Unit, dtypes, setting
from kernmill.runtime import get_device

from ..methods.elementwise import where
from ..methods.movement import cat, stack
from ..size import SymbolicSize
from ..tensor import Tensor
from .block import Codes

__all__ = ["MANY_ROWS", "float_linear", "float_unit", "is_rounded", "unit_for", "unit_product"]

MANY_ROWS = 128  # of x, from which on decoding weights for them pays
_DECODED_BYTES = 1 << 26  # of weights at a time
_LARGE = 2.0**15  # of x as float16


def float_unit(device: str, *kinds: DType) -> Unit | None:
    """Return the matrix unit of a device that multiplies whole tiles of such floats; of any floats without `kinds`."""
    units = [unit for unit in get_device(device).target.units if unit.a is unit.b and not unit.items]
    return next((unit for unit in units if unit.a.is_float and unit.a in (kinds or (unit.a,))), None)


def unit_for(x: Tensor, *kinds: DType) -> Unit | None:
    """The same for the rows of x [.., n]: if there are many, and their values may be rounded."""
    return float_unit(x.device, *kinds) if is_rounded(x, MANY_ROWS) else None


def is_rounded(x: Tensor, least: int) -> bool:
    """True if x has at least `least` rows, and their values may be rounded."""
    rows: Any = math.prod(x.shape[:-1])
    is_many = not isinstance(rows, SymbolicSize) and rows >= least
    is_float = x.dtype.bits < 64 and x.dtype.is_float and not x.requires_grad
    return is_many and is_float and setting("QUANT_ACT") == "int8"


def unit_product(x: Tensor, codes: Codes, unit: Unit) -> Tensor:
    """Sum over all values of all blocks.

    Shapes: x [rows, n] and codes of interleaved rows [groups, unit.n, blocks, values] give [rows, groups * unit.n].
    Dtypes: float32.
    """
    left, n = _rows(x, unit), x.shape[1]
    values = replace(codes, scale=_ahead(codes.scale), offset=None if codes.offset is None else _ahead(codes.offset))
    groups = values.values().cast(unit.b).unflatten(-1, (-1, unit.group)).permute(0, 2, 3, 1, 4)
    count, group_bytes = groups.shape[0], unit.n * n * unit.b.size_bytes
    result_bytes = x.shape[0] * count * unit.n * unit.c.size_bytes  # would be there twice
    is_small = count * group_bytes <= _DECODED_BYTES + result_bytes
    each = count if is_small else max(1, _DECODED_BYTES // group_bytes)
    parts = [groups[at : at + each].contiguous() for at in range(0, count, each)]
    results = [left @ part.permute(0, 3, 1, 2, 4).reshape(-1, n).cast(unit.c).T for part in parts]
    return cat(results, axis=-1)[: x.shape[0]]


def float_linear(x: Tensor, weight: Tensor) -> Tensor | None:
    """Return x @ weight.T for float32 x and a weight of halves, with x rounded to the unit's dtype. None for other
    dtypes, for few rows, and without a matrix unit.

    Shapes: x [.., n] and the weight [m, n] give [.., m]. Dtypes: float32.
    """
    is_halves = weight.dtype in (dtypes.float16, dtypes.bfloat16) and not weight.requires_grad
    is_asked = is_halves and x.dtype is dtypes.float32 and x.shape[-1] > 0
    unit = (unit_for(x, weight.dtype) or unit_for(x, dtypes.bfloat16)) if is_asked else None
    if unit is None or x.shape[-1] % unit.k:
        return None
    rows, scale = x.reshape(-1, x.shape[-1]), None
    if unit.a is dtypes.float16:  # whose range is small
        most = rows.abs().max(-1, keepdim=True)
        scale = where(most.gt(0).logical_and(most.lt(math.inf)), most / _LARGE, most._filled(1.0)).contiguous()
        rows = rows / scale
    if weight.dtype is unit.b:
        left, right = _rows(rows, unit), weight
    else:  # upper by upper, lower by upper, upper by lower
        upper, lower = _halves(rows, unit)
        finite = where(upper.float().abs().lt(math.inf), upper, upper._filled(0.0))  # an infinity counts once
        left = _rows(_concatenated_steps(unit, upper, lower, finite), unit)
        right = _concatenated_steps(unit, *_halves(weight.float(), unit)).contiguous()
        right = right.unflatten(1, (-1, 2, unit.k)).repeat_interleave(2, 2)[:, :, :3].flatten(1)
    result = (left @ right.cast(unit.c).T)[: rows.shape[0]]
    return (result if scale is None else result * scale).reshape(*x.shape[:-1], weight.shape[0])


def _halves(x: Tensor, unit: Unit) -> tuple[Tensor, Tensor]:
    """Split into high and low parts; the low part of a non-finite number is 0."""
    upper = x.cast(unit.a)
    rest = x - upper.float()
    return upper, where(rest.abs().lt(math.inf), rest, rest._filled(0.0)).cast(unit.a)


def _concatenated_steps(unit: Unit, *parts: Tensor) -> Tensor:
    """Concatenate parts of rows [rows, n], step by step of the unit: [rows, steps * parts * unit.k]."""
    return stack([part.unflatten(-1, (-1, unit.k)) for part in parts], axis=2).flatten(1)


def _rows(x: Tensor, unit: Unit) -> Tensor:
    """Repack rows [.., n] for the unit, padded to whole tiles that are consecutive in memory."""
    n = x.shape[1]
    size = -(-x.shape[0] // unit.m) * unit.m
    whole = x.cast(unit.a).pad([(0, size - x.shape[0]), (0, 0)])
    tiles = whole.reshape(size // unit.m, unit.m, n // unit.k, unit.k).permute(0, 2, 1, 3).contiguous()
    return tiles.permute(0, 2, 1, 3).reshape(size, n).cast(unit.c)


def _ahead(part: Tensor) -> Tensor:
    """Store the scales of interleaved rows, those of a group contiguous."""
    return part.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
