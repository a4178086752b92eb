"""Blocks of 256 values whose codes are places in a table of points, with signs and small scales apart: IQ1, IQ2, IQ3.

The tables were found by search; no formula gives them, so kernmill does not have them. It takes them from the package
gguf, which the extra `iq` installs, when such a type is read for the first time.
Source: github.com/ggml-org/ggml, src/ggml-common.h (layouts).
Tests: tests/kernmill/quant/test_grids.py.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from kernmill.ir import FormatError, dtypes, take

from ..elementwise import where
from ..tensor import Tensor
from .bits import half, unpack, words
from .block import BlockType, Codes

__all__ = ["BLOCKS"]


@functools.lru_cache(maxsize=32)
def _table(name: str, device: str) -> Tensor:
    """The points of a type on a device, whole numbers: int8 [number of points, 4 or 8].

    Raises:
        FormatError: the package gguf is not here.
    """
    try:
        quants: Any = importlib.import_module("gguf.quants")
    except ImportError:
        raise FormatError(
            f"{name}: the tables of this type are in the package gguf, which is not installed. "
            "Run: pip install 'kernmill[iq]'"
        ) from None
    traits = getattr(quants, name)
    traits.init_grid()
    return Tensor(traits.grid.reshape(traits.grid_shape), device=device).cast(dtypes.int8).realize()


def _points(name: str, index: Tensor) -> Tensor:
    """The points that an index names: [.., n] to [.., n, 4 or 8]. An index has as many bits as the table needs."""
    table = _table(name, index.device)
    return table._result(take(table.uop, index.cast(dtypes.int32).uop, 0), index)


def _signs(x: Tensor) -> Tensor:
    """1 or -1 for each bit: [.., n] bytes to [.., n, 8]."""
    return 1 - 2 * unpack(x, 1, 1).bitcast(dtypes.int8).unflatten(-1, (x.shape[-1], 8))


def _even(x: Tensor) -> Tensor:
    """Seven bits and an eighth that makes the number of ones even, as a byte."""
    seven = (x & 127).cast(dtypes.uint8)
    folded = seven ^ seven >> 4
    folded = folded ^ folded >> 2
    return seven | (folded ^ folded >> 1) << 7


def _sevens(word: Tensor) -> Tensor:
    """Four times seven bits of each 32-bit number: [.., n] to [.., 4 * n]."""
    return (word.unsqueeze(-1) >> (Tensor.arange(4, dtype=dtypes.uint32) * 7)).flatten(-2)


# --- IQ2, IQ3 --------------------------------------------------------------------------------------------------------
def _read_iq2_xxs(d: Tensor, qs: Tensor) -> Codes:
    groups = qs.unflatten(-1, (8, 8))
    index, word = groups[..., :4].flatten(-2), words(groups[..., 4:], dtypes.uint32).squeeze(-1)
    scale = half(d) * (0.5 + (word >> 28).float()) * 0.25
    return Codes((_points("IQ2_XXS", index) * _signs(_even(_sevens(word)))).flatten(-2), scale)


def _read_iq2_xs(d: Tensor, qs: Tensor, scales: Tensor) -> Codes:
    word = words(qs, dtypes.uint16)
    scale = half(d) * (0.5 + unpack(scales, 4, 1).float()) * 0.25
    return Codes((_points("IQ2_XS", word & 511) * _signs(_even(word >> 9))).flatten(-2), scale)


def _read_iq2_s(d: Tensor, qs: Tensor, signs: Tensor, qh: Tensor, scales: Tensor) -> Codes:
    index = qs.cast(dtypes.uint16) | unpack(qh, 2, 1).cast(dtypes.uint16) << 8
    scale = half(d) * (0.5 + unpack(scales, 4, 1).float()) * 0.25
    return Codes((_points("IQ2_S", index) * _signs(signs)).flatten(-2), scale)


def _pairs(points: Tensor) -> Tensor:
    """Points of 4 two by two: [.., n, 4] to [.., n / 2, 8]."""
    return points.flatten(-2).unflatten(-1, (points.shape[-2] // 2, 8))


def _read_iq3_xxs(d: Tensor, qs: Tensor, scales: Tensor) -> Codes:
    word = words(scales, dtypes.uint32)
    scale = half(d) * (0.5 + (word >> 28).float()) * 0.5
    return Codes((_pairs(_points("IQ3_XXS", qs)) * _signs(_even(_sevens(word)))).flatten(-2), scale)


def _read_iq3_s(d: Tensor, qs: Tensor, qh: Tensor, signs: Tensor, scales: Tensor) -> Codes:
    index = qs.cast(dtypes.uint16) | unpack(qh, 1, 1).cast(dtypes.uint16) << 8
    scale = half(d) * (1 + 2 * unpack(scales, 4, 1).float())
    return Codes((_pairs(_points("IQ3_S", index)) * _signs(signs)).flatten(-2), scale)


# --- IQ1: points of -1, 0 and 1, moved by an eighth ------------------------------------------------------------------
def _eighths(points: Tensor, is_down: Tensor) -> Tensor:
    """Eight times each point [.., n, 8], plus 1, or minus 1 where a bit of [.., n] is set: [.., 8 * n]."""
    step = where(is_down.ne(0), Tensor(-1, dtypes.int8), Tensor(1, dtypes.int8)).unsqueeze(-1)
    return (points * 8 + step).flatten(-2)


def _read_iq1_s(d: Tensor, qs: Tensor, qh: Tensor) -> Codes:
    word = words(qh, dtypes.uint16)
    high = (word.unsqueeze(-1) >> (Tensor.arange(4, dtype=dtypes.uint16) * 3) & 7).flatten(-2)
    index = qs.cast(dtypes.uint16) | high << 8
    is_down = (word >> 15).unsqueeze(-1).expand(*word.shape, 4).flatten(-2)
    scale = half(d) * (2 * (word >> 12 & 7).float() + 1) / 8
    return Codes(_eighths(_points("IQ1_S", index), is_down), scale)


def _read_iq1_m(qs: Tensor, qh: Tensor, scales: Tensor) -> Codes:
    word = words(scales, dtypes.uint16)
    nibbles = (word >> 12) << (Tensor.arange(4, dtype=dtypes.uint16) * 4)
    d = nibbles.sum(-1, keepdim=True, dtype=dtypes.uint16).bitcast(dtypes.float16).float()
    scale = (word.unsqueeze(-1) >> (Tensor.arange(4, dtype=dtypes.uint16) * 3) & 7).flatten(-2)
    high = unpack(qh, 4, 1)
    index = qs.cast(dtypes.uint16) | (high & 7).cast(dtypes.uint16) << 8
    return Codes(_eighths(_points("IQ1_M", index), high & 8), d * (2 * scale.float() + 1) / 8)


BLOCKS = (
    BlockType("IQ2_XXS", {"d": 2, "qs": 64}, _read_iq2_xxs),
    BlockType("IQ2_XS", {"d": 2, "qs": 64, "scales": 8}, _read_iq2_xs),
    BlockType("IQ2_S", {"d": 2, "qs": 32, "signs": 32, "qh": 8, "scales": 8}, _read_iq2_s),
    BlockType("IQ3_XXS", {"d": 2, "qs": 64, "scales": 32}, _read_iq3_xxs),
    BlockType("IQ3_S", {"d": 2, "qs": 64, "qh": 8, "signs": 32, "scales": 4}, _read_iq3_s),
    BlockType("IQ1_S", {"d": 2, "qs": 32, "qh": 16}, _read_iq1_s),
    BlockType("IQ1_M", {"qs": 32, "qh": 16, "scales": 8}, _read_iq1_m),
)
