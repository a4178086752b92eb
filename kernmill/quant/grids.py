"""Blocks of 256 values whose quants are codebook indices, with separate signs and small scales: IQ1, IQ2, IQ3.

The codebooks were found by search; no formula gives them, so kernmill does not contain them. It takes them from the
package gguf, which the extra `iq` installs, when such a type is read for the first time. Source:
github.com/ggml-org/ggml, src/ggml-common.h (layouts). Tests: tests/kernmill/quant/test_grids.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from kernmill.ir import dtypes, take

from ..methods.elementwise import where
from ..methods.movement import cat
from ..tensor import Tensor
from . import decoded
from .bits import half, half_bytes, lookup, unpack, words
from .block import BlockType, Codes
from .codebooks import codebook
from .grid_writing import WRITERS

__all__ = ["BLOCKS"]

_ZERO = 128  # the quant that stands for 0
_ONES = 0x01010101  # the lowest bit of each byte


@functools.lru_cache(maxsize=32)
def _table(name: str, device: str) -> Tensor:
    """Return the codebook of a type on a device, 4 or 8 bytes in one: uint32 or uint64 [number of entries].

    A byte is 128 more than a value, of IQ1 than eight times a value: an unsigned quant, as a product of bytes needs it.
    The negative of a byte is the quant of the negative value.
    """
    points = (codebook(name) * (8 if name.startswith("IQ1") else 1) + _ZERO).astype("uint8")
    return Tensor(points.view(f"uint{8 * points.shape[1]}").flatten(), device=device).realize()


@functools.lru_cache(maxsize=32)
def _planes(name: str, device: str) -> Tensor:
    """Return the codebook of a type as two tables of bytes: uint8 [2, number of entries], small enough for registers.

    Half h of a byte of table p is one magnitude index or two, with room for signs. In an entry of eight values they
    belong to values `h * 4 + p * 2 + b`, with b of 0 and 1; in one of four, to value `h * 2 + p`.
    """
    grid = codebook(name)
    numbers: Any = sum(grid > size for size in decoded.SIZES[name][:-1])
    numbers = numbers.astype("uint8")
    halves = numbers.reshape(len(grid), 2, 2, grid.shape[1] // 4)
    planes = halves[:, 0] | halves[:, 1] << 4
    return Tensor(
        (planes[..., 0] | planes[..., -1] << (2 if grid.shape[1] == 8 else 0)).T.copy(), device=device
    ).realize()


def _points(name: str, index: Tensor) -> Tensor:
    """Look up codebook entries: [.., n] to [.., n * 4 or 8]. An index has as many bits as the codebook needs."""
    table = _table(name, index.device)
    point = _taken(table, index).unsqueeze(-1)
    shifts = Tensor.arange(table.dtype.size_bytes, dtype=table.dtype) * 8
    return (point >> shifts).cast(dtypes.uint8).flatten(-2)


def _taken(table: Tensor, index: Tensor) -> Tensor:
    """Gather along the last axis of a table: [.., entries] and [..] to [.., ..]."""
    return table._result(take(table.uop, index.cast(dtypes.int32).uop, table.ndim - 1), index)


def _high_bits(x: Tensor, bits: int) -> Tensor:
    """Unpack the bits above 8 bits of 8 // bits indices each: [.., n] bytes to [.., n * 8 // bits]."""
    left = 8 - Tensor.arange(8 // bits, dtype=dtypes.int32) * bits
    return (x.cast(dtypes.int32).unsqueeze(-1) << left & (1 << bits) - 1 << 8).flatten(-2)


def _shifts(count: int, step: int) -> Tensor:
    """0, step, 2 * step, .."""
    return Tensor.arange(count, dtype=dtypes.uint32) * step


def _signed(points: Tensor, signs: Tensor, scale: Tensor) -> Codes:
    """Apply a sign bit per value to codebook entries: [.., 8 * n] and [.., n]."""
    bit = signs.cast(dtypes.uint8).unsqueeze(-1) & 1 << Tensor.arange(8, dtype=dtypes.uint8)
    return Codes(where(bit.ne(0).flatten(-2), points.neg(), points), scale, _ZERO)


def _even(x: Tensor, ones: int = 1) -> Tensor:
    """Seven bits and an eighth that makes the number of ones even, of each byte whose lowest bit is one of `ones`."""
    folded = x ^ x >> 4
    folded = folded ^ folded >> 2
    return x | ((folded ^ folded >> 1) & ones) << 7


def _sevens(word: Tensor) -> Tensor:
    """Four times seven bits of each 32-bit number, and the eighth: [.., n] to [.., 4 * n]."""
    return _even(word.unsqueeze(-1) >> _shifts(4, 7) & 127).flatten(-2)


# --- IQ2, IQ3 --------------------------------------------------------------------------------------------------------
def _read_iq2_xxs(d: Tensor, qs: Tensor) -> Codes:
    groups = qs.unflatten(-1, (8, 8))
    index, word = groups[..., :4].flatten(-2), words(groups[..., 4:], dtypes.uint32).squeeze(-1)
    scale = half(d) * (0.5 + (word >> 28).float()) * 0.25
    return _signed(_points("IQ2_XXS", index), _sevens(word), scale)


def _read_iq2_xs(d: Tensor, qs: Tensor, scales: Tensor) -> Codes:
    word = (words(qs, dtypes.uint32).unsqueeze(-1) >> _shifts(2, 16)).flatten(-2)
    scale = half(d) * (0.5 + unpack(scales, 4, 1).float()) * 0.25
    return _signed(_points("IQ2_XS", word & 511), _even(word >> 9 & 127), scale)


def _read_iq2_s(d: Tensor, qs: Tensor, signs: Tensor, qh: Tensor, scales: Tensor) -> Codes:
    index = qs.cast(dtypes.int32) + _high_bits(qh, 2)
    scale = half(d) * (0.5 + unpack(scales, 4, 1).float()) * 0.25
    return _signed(_points("IQ2_S", index), signs, scale)


def _read_iq3_xxs(d: Tensor, qs: Tensor, scales: Tensor) -> Codes:
    word = words(scales, dtypes.uint32)
    scale = half(d) * (0.5 + (word >> 28).float()) * 0.5
    return _signed(_points("IQ3_XXS", qs), _sevens(word), scale)


def _read_iq3_s(d: Tensor, qs: Tensor, qh: Tensor, signs: Tensor, scales: Tensor) -> Codes:
    index = qs.cast(dtypes.int32) + _high_bits(qh, 1)
    scale = half(d) * (1 + 2 * unpack(scales, 4, 1).float())
    return _signed(_points("IQ3_S", index), signs, scale)


# --- interleaved rows: four times seven bits in a byte each, and the remaining bits in the highest bits
def _in_bytes(sevens: Tensor, highest: Tensor) -> Tensor:
    return (sevens | highest << 7).cast(dtypes.uint8)


def _signs(word: Tensor) -> Tensor:
    """Bytes of signs: [.., n] 32-bit numbers to [.., 4 * n]."""
    return (_even(word & 0x7F7F7F7F, _ONES).unsqueeze(-1) >> _shifts(4, 8)).flatten(-2)


def _iq2_xxs_by_bytes(d: Tensor, qs: Tensor) -> dict[str, Tensor]:
    groups = qs.unflatten(-1, (8, 8))
    return {"d": d, "qs": cat([groups[..., :4], _scales_by_bytes(groups[..., 4:].flatten(-2))], -1).flatten(-2)}


def _iq3_xxs_by_bytes(d: Tensor, qs: Tensor, scales: Tensor) -> dict[str, Tensor]:
    return {"d": d, "qs": qs, "scales": _scales_by_bytes(scales).flatten(-2)}


def _scales_by_bytes(scales: Tensor) -> Tensor:
    """The four bits of a scale above four times seven signs: [.., 4 * n] to [.., n, 4]."""
    word = words(scales, dtypes.uint32).unsqueeze(-1)
    return _in_bytes(word >> _shifts(4, 7) & 127, word >> 28 >> _shifts(4, 1) & 1)


def _scales(word: Tensor, unit: Tensor) -> Tensor:
    bits = word >> 7 & _ONES
    scale = (bits | bits >> 7 | bits >> 14 | bits >> 21) & 15
    return unit * (0.5 + scale.float())


def _signed_by_scales(points: Tensor, scales: Tensor, unit: Tensor) -> Codes:
    word = words(scales, dtypes.uint32)
    return _signed(points, _signs(word), _scales(word, unit))


def _interleaved_iq2_xxs(d: Tensor, qs: Tensor) -> Codes:
    groups = qs.unflatten(-1, (8, 8))
    points = _points("IQ2_XXS", groups[..., :4].flatten(-2))
    return _signed_by_scales(points, groups[..., 4:].flatten(-2), half(d) * 0.25)


def _interleaved_iq3_xxs(d: Tensor, qs: Tensor, scales: Tensor) -> Codes:
    return _signed_by_scales(_points("IQ3_XXS", qs), scales, half(d) * 0.5)


def _iq2_xs_by_bytes(d: Tensor, qs: Tensor, scales: Tensor) -> dict[str, Tensor]:
    """Four indices without their ninth bits, then four times seven signs with these above."""
    word = words(qs, dtypes.uint16).unflatten(-1, (8, 4))
    low, high = (word & 255).cast(dtypes.uint8), _in_bytes(word >> 9, word >> 8 & 1)
    return {"d": d, "qs": cat([low, high], axis=-1).flatten(-2), "scales": scales}


def _interleaved_iq2_xs(d: Tensor, qs: Tensor, scales: Tensor) -> Codes:
    groups = qs.unflatten(-1, (8, 8))
    word = words(groups[..., 4:].flatten(-2), dtypes.uint32)
    high = (word.unsqueeze(-1) >> _shifts(4, 8) << 1 & 256).flatten(-2)
    points = _points("IQ2_XS", groups[..., :4].flatten(-2).cast(dtypes.uint32) | high)
    return _signed(points, _signs(word), half(d) * (0.5 + unpack(scales, 4, 1).float()) * 0.25)


# --- interleaved rows for tables in registers: a word has indices of four entries, a byte signs of eight values
def _sign_bytes(word: Tensor) -> Tensor:
    """[..] 32-bit numbers with four bytes of seven signs to [.., 4] of eight."""
    return _signs(word.unsqueeze(-1)).cast(dtypes.uint8)


def _bits(*shape: int) -> Tensor:
    """0 and 1 along the first of these axes."""
    return Tensor.arange(2, dtype=dtypes.uint8).reshape(shape)


def _of_planes(name: str, index: Tensor, is_second: Tensor | None = None) -> Tensor:
    """Look up entries in the register tables: their indices [.., n] among the first 256 or the second: [.., 2, n]."""
    table = _planes(name, index.device)
    found = [_taken(table[:, n : n + 256], index).movedim(0, -2) for n in range(0, table.shape[1], 256)]
    return found[0] if is_second is None else where(is_second.unsqueeze(-2), found[1], found[0])


def _choices(nibbles: Tensor, name: str, sign: Tensor | int) -> Tensor:
    """Select quants by magnitude indices and a sign bit."""
    sizes = decoded.SIZES[name]
    number = nibbles & (3 if len(sizes) < 4 else 7)
    plus, minus = (lookup(number, [_ZERO + k * size for size in sizes], dtypes.uint8) for k in (1, -1))
    return where((nibbles & sign).ne(0), minus, plus)


def _eights(name: str, planes: Tensor, signs: Tensor) -> Tensor:
    """Return quants of entries of eight values: [.., 2, 4] and signs [.., 4] to [.., 8, 4]."""
    p, b, h = _bits(2, 1, 1), _bits(2, 1), _bits(2, 1, 1, 1)
    both = (planes.unsqueeze(-2) >> b * 2 & 0x33) | (signs[..., None, None, :] << 2 - p * 2 & 0xCC)
    return _choices(both.unsqueeze(-4) >> h * 4 & 15, name, 4 << b).flatten(-4, -2)


def _fours(name: str, planes: Tensor, signs: Tensor) -> Tensor:
    """Return quants of pairs of entries of four values: [.., 2, 2, 4] (of pair, table, word) and signs [.., 4] to
    [.., 8, 4]."""
    w, p, h = _bits(2, 1, 1), _bits(2, 1), _bits(2, 1, 1)
    both = (planes & 0x77) | (signs[..., None, None, :] << 3 - w * 2 - p & 0x88)
    return _choices(both.unsqueeze(-3) >> h * 4 & 15, name, 8).flatten(-4, -2)


def _two_words(qs: Tensor) -> Tensor:
    """Every second of eight numbers in a word: [.., 8 * n] to the same."""
    return qs.unflatten(-1, (-1, 4, 2)).transpose(-1, -2).flatten(-3)


def _middle_swapped(x: Tensor) -> Tensor:
    """The third and fourth bit where the fifth and sixth were, and these there."""
    return x & 0xC3 | (x & 0x0C) << 2 | (x & 0x30) >> 2


def _pairs(high: Tensor) -> Tensor:
    """Two bits of each of four numbers in a byte by eight groups, to a byte for the same numbers of four groups."""
    twos = Tensor.arange(4, dtype=dtypes.uint8) * 2
    bits = (high.unflatten(-1, (2, 4, 1)) >> twos & 3) << twos.unsqueeze(-1)
    return bits.sum(-2, dtype=dtypes.uint8).flatten(-2)


def _high(qh: Tensor) -> Tensor:
    """`_pairs` by groups: [.., 8] to [.., 8, 4], two bits."""
    twos = Tensor.arange(4, dtype=dtypes.uint8) * 2
    return (qh.unflatten(-1, (2, 1, 4)) >> twos.unsqueeze(-1)).flatten(-3, -2)


def _halves(name: str, planes: Tensor, signs: Tensor) -> Tensor:
    """Return quants of entries of eight values, two of which share a scale: [.., 8, 2, 4] and signs [.., 8, 4] to [..,
    256].

    Halves of words are swapped, so that a word has values of one scale: both tables' of two entries.
    """
    plane, sign = words(planes, dtypes.uint32).squeeze(-1), words(signs, dtypes.uint32).squeeze(-1)
    both = [
        (plane[..., k, None] >> _shifts(2, 2) & 0x33333333) | (sign.unsqueeze(-1) << 2 - 2 * k & 0xCCCCCCCC)
        for k in (0, 1)
    ]
    first, second = both[0] & 0xFFFF | both[1] << 16, both[0] >> 16 | both[1] & 0xFFFF0000
    word = cat([first.unsqueeze(-2), second.unsqueeze(-2)], axis=-2)
    found = (word.unsqueeze(-1) >> _shifts(4, 8)).cast(dtypes.uint8)
    nibbles = found.unsqueeze(-3) >> _bits(2, 1, 1) * 4 & 15
    return _choices(nibbles, name, 4 << _bits(2, 1)).flatten(-5)


def _read_held_iq2_xxs(d: Tensor, qs: Tensor) -> Codes:
    groups = qs.unflatten(-1, (8, 8))
    word = words(groups[..., 4:], dtypes.uint32).squeeze(-1)
    codes = _eights("IQ2_XXS", _of_planes("IQ2_XXS", groups[..., :4]), _sign_bytes(word))
    return Codes(codes.flatten(-3), _scales(word, half(d) * 0.25), _ZERO)


def _read_held_iq2_xs(d: Tensor, qs: Tensor, scales: Tensor) -> Codes:
    groups = qs.unflatten(-1, (8, 8))
    planes = _of_planes("IQ2_XS", groups[..., :4], (groups[..., 4:] & 128).ne(0))
    signs = _sign_bytes(words(groups[..., 4:], dtypes.uint32).squeeze(-1))
    scale = half(d) * (0.5 + unpack(scales, 4, 1).float()) * 0.25
    return Codes(_halves("IQ2_XS", planes, signs), scale, _ZERO)


def _iq3_xxs_held(d: Tensor, qs: Tensor, scales: Tensor) -> dict[str, Tensor]:
    return {"d": d, "qs": _two_words(qs), "scales": _middle_swapped(_scales_by_bytes(scales)).flatten(-2)}


def _read_held_iq3_xxs(d: Tensor, qs: Tensor, scales: Tensor) -> Codes:
    word = words(scales, dtypes.uint32)
    codes = _fours("IQ3_XXS", _of_planes("IQ3_XXS", qs.unflatten(-1, (8, 2, 4))), _sign_bytes(word))
    return Codes(codes.flatten(-3), _scales(word, half(d) * 0.5), _ZERO)


def _iq3_s_held(d: Tensor, qs: Tensor, qh: Tensor, signs: Tensor, scales: Tensor) -> dict[str, Tensor]:
    return {"d": d, "qs": _two_words(qs), "qh": _pairs(qh), "signs": _middle_swapped(signs), "scales": scales}


def _read_held_iq3_s(d: Tensor, qs: Tensor, qh: Tensor, signs: Tensor, scales: Tensor) -> Codes:
    high = (_high(qh).unsqueeze(-2) & 1 << _bits(2, 1)).ne(0)
    codes = _fours("IQ3_S", _of_planes("IQ3_S", qs.unflatten(-1, (8, 2, 4)), high), signs.unflatten(-1, (8, 4)))
    scale = half(d) * (1 + 2 * unpack(scales, 4, 1).float())
    return Codes(codes.flatten(-3), scale, _ZERO)


# --- IQ1: entries of -1, 0 and 1, shifted by an eighth
def _eighths(points: Tensor, down: Tensor, scale: Tensor) -> Codes:
    """Eight times each point [.., 8 * n], plus 1, or minus 1 where a byte of [.., n] is 2 and not 0."""
    step = (1 - down).unsqueeze(-1).expand(*down.shape, points.shape[-1] // down.shape[-1])
    return Codes(points + step.flatten(-2), scale, _ZERO)


def _read_iq1_s(d: Tensor, qs: Tensor, qh: Tensor) -> Codes:
    word = words(qh, dtypes.uint16).cast(dtypes.int32)
    high = (word.unsqueeze(-1) << 8 >> Tensor.arange(4, dtype=dtypes.int32) * 3 & 0x700).flatten(-2)
    points = _points("IQ1_S", qs.cast(dtypes.int32) + high)
    scale = half(d) * (2 * (word >> 12 & 7).float() + 1) / 8
    return _eighths(points, (word >> 14 & 2).cast(dtypes.uint8), scale)


def _iq1_m_scales(scales: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scale of the block and those of its groups."""
    word = words(scales, dtypes.uint16)
    first, second, third, fourth = (word >> 12).split(1, axis=-1)
    d = (first | second << 4 | third << 8 | fourth << 12).bitcast(dtypes.float16).float()
    return d, (word.unsqueeze(-1) >> (Tensor.arange(4, dtype=dtypes.uint16) * 3) & 7).flatten(-2)


def _read_iq1_m(qs: Tensor, qh: Tensor, scales: Tensor) -> Codes:
    d, scale = _iq1_m_scales(scales)
    left = 8 - Tensor.arange(2, dtype=dtypes.int32) * 4
    high = (qh.cast(dtypes.int32).unsqueeze(-1) << left & 0x700).flatten(-2)
    points = _points("IQ1_M", qs.cast(dtypes.int32) + high)
    return _eighths(points, unpack(qh, 4, 1) >> 2 & 2, d * (2 * scale.float() + 1) / 8)


# --- interleaved rows with decoded values
def _numbered(name: str, read: Callable[..., Codes]) -> tuple[BlockType, Callable[..., dict[str, Tensor]]]:
    """Make the layout of types whose scales are stored in half bytes."""

    def made(d: Tensor, scales: Tensor, **rest: Tensor) -> dict[str, Tensor]:
        return {"d": d, "scales": scales, "codes": decoded.numbers(name, read(d=d, scales=scales, **rest))}

    return decoded.FORMS[name], made


def _iq2_xxs_written(d: Tensor, qs: Tensor) -> dict[str, Tensor]:
    codes = decoded.numbers("IQ2_XXS", _read_iq2_xxs(d, qs))
    return {"d": d, "scales": decoded.scales_above(qs[..., 7::8]), "codes": codes}


def _iq3_xxs_written(d: Tensor, qs: Tensor, scales: Tensor) -> dict[str, Tensor]:
    codes = decoded.numbers("IQ3_XXS", _read_iq3_xxs(d, qs, scales))
    return {"d": d, "scales": decoded.scales_above(scales[..., 3::4]), "codes": codes}


def _iq1_s_written(d: Tensor, qs: Tensor, qh: Tensor) -> dict[str, Tensor]:
    return decoded.iq1_s(d, qh[..., 1::2] >> 4 & 7, _read_iq1_s(d, qs, qh))


def _iq1_m_written(qs: Tensor, qh: Tensor, scales: Tensor) -> dict[str, Tensor]:
    d, scale = _iq1_m_scales(scales)
    return decoded.iq1_m(half_bytes(d), scale.cast(dtypes.uint8), _read_iq1_m(qs, qh, scales))


_XXS, _XS, _XXS3 = {"d": 2, "qs": 64}, {"d": 2, "qs": 64, "scales": 8}, {"d": 2, "qs": 64, "scales": 32}
_S, _S3 = {"d": 2, "qs": 32, "signs": 32, "qh": 8, "scales": 8}, {"d": 2, "qs": 64, "qh": 8, "signs": 32, "scales": 4}
_FOUR = ((4, 8), (1, 0))  # entries of eight values, their first ones in a word
_TWO = ((2, 2, 2, 2), (1, 3, 2, 0))  # values of two entries, decoded as half of a byte, table, and index in it
_INTERLEAVED = (
    BlockType("IQ2_XXS", _XXS, _interleaved_iq2_xxs, axes=(8, 32), looked_up=True),
    BlockType("IQ2_XS", _XS, _interleaved_iq2_xs, axes=(8, 2, 16), looked_up=True),
    BlockType("IQ3_XXS", _XXS3, _interleaved_iq3_xxs, axes=(8, 32), looked_up=True),
)
_HELD = (  # the 1024 entries of IQ2_S would need 16 lookups: that is slower than gathers
    BlockType("IQ2_XXS", _XXS, _read_held_iq2_xxs, axes=(8, 32), order=_FOUR),
    BlockType("IQ2_XS", _XS, _read_held_iq2_xs, axes=(8, 2, 16), order=_TWO),
    BlockType("IQ3_XXS", _XXS3, _read_held_iq3_xxs, axes=(8, 32), order=_FOUR),
    BlockType("IQ3_S", _S3, _read_held_iq3_s, axes=(4, 2, 32), order=_FOUR),
)


def _grid_type(name: str, layout: dict[str, int], read: Callable[..., Codes], **more: Any) -> BlockType:
    return BlockType(name, layout, read, WRITERS[name], looked_up=True, weighs=True, **more)


BLOCKS = (
    _grid_type("IQ2_XXS", _XXS, _read_iq2_xxs, axes=(8, 32), laid=(_INTERLEAVED[0], _iq2_xxs_by_bytes),
              held=(_HELD[0], _iq2_xxs_by_bytes), written=(decoded.FORMS["IQ2_XXS"], _iq2_xxs_written)),
    _grid_type("IQ2_XS", _XS, _read_iq2_xs, axes=(8, 2, 16), laid=(_INTERLEAVED[1], _iq2_xs_by_bytes),
              held=(_HELD[1], _iq2_xs_by_bytes), written=_numbered("IQ2_XS", _read_iq2_xs)),
    _grid_type("IQ2_S", _S, _read_iq2_s, axes=(8, 2, 16), written=_numbered("IQ2_S", _read_iq2_s)),
    _grid_type("IQ3_XXS", _XXS3, _read_iq3_xxs, axes=(8, 32), laid=(_INTERLEAVED[2], _iq3_xxs_by_bytes),
              held=(_HELD[2], _iq3_xxs_held), written=(decoded.FORMS["IQ3_XXS"], _iq3_xxs_written)),
    _grid_type("IQ3_S", _S3, _read_iq3_s, axes=(4, 2, 32), held=(_HELD[3], _iq3_s_held),
              written=_numbered("IQ3_S", _read_iq3_s)),
    _grid_type("IQ1_S", {"d": 2, "qs": 32, "qh": 16}, _read_iq1_s, axes=(8, 32),
              written=(decoded.FORMS["IQ1_S"], _iq1_s_written)),
    _grid_type("IQ1_M", {"qs": 32, "qh": 16, "scales": 8}, _read_iq1_m, axes=(4, 4, 16),
              written=(decoded.FORMS["IQ1_M"], _iq1_m_written)),
)  # fmt: skip
