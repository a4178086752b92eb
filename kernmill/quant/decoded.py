"""Interleaved layouts with decoded values: 2- to 4-bit quants where files have codebook indices.

Lookups in memory take longer than reading more bytes. A quant has
- for IQ1 2 bits, for -1, 0 and 1. Whether an eighth is added or subtracted is a bit for all values that share it; in
  IQ1_S it is the lowest bit of a scale, which is always odd;
- for IQ2 3 bits, for IQ3 4 bits: the rank of a value among the possible ones, from the least one on.
Two scales share a byte. Why: docs/topics/quantized-layouts.md. Tests:
tests/kernmill/quant/test_decoded.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kernmill.ir import dtypes

from ..tensor import Tensor
from .bits import half, lookup, pack, pack_threes, threes, unpack
from .block import BlockType, Codes

__all__ = ["FORMS", "SIZES", "iq1_m", "iq1_s", "numbers", "scales_above"]

SIZES = {  # magnitudes by their indices in a codebook
    "IQ2_XXS": (8, 25, 43),
    "IQ2_XS": (8, 25, 43),
    "IQ2_S": (8, 25, 43),
    "IQ3_XXS": (4, 12, 20, 28, 36, 44, 52, 62),
    "IQ3_S": (1, 3, 5, 7, 9, 11, 13, 15),
}
_EIGHTHS = 9  # below the quant for 0: the least value is eight eighths and one more


# --- IQ2, IQ3 --------------------------------------------------------------------------------------------------------
def _table(name: str) -> tuple[int, ...]:
    """Return all possible values, relative to the least one."""
    sizes = SIZES[name]
    return (*[sizes[-1] - size for size in sizes[::-1]], *[sizes[-1] + size for size in sizes])


def numbers(name: str, codes: Codes) -> Tensor:
    """The numbers of values in few bits: [.., values] to bytes. Each value is a step above the last, or a bit more."""
    sizes = SIZES[name]
    number = (codes.codes - (codes.zero - sizes[-1])) // (sizes[1] - sizes[0])
    return pack_threes(number) if len(sizes) < 4 else pack(number, 4, 16)


def scales_above(x: Tensor) -> Tensor:
    """The upper half of each byte, two in a byte."""
    return pack(x >> 4, 4, 1)


def _scale(unit: Tensor, scales: Tensor) -> Tensor:
    return unit * (0.5 + unpack(scales, 4, 1).float())


def _read_iq2(name: str, d: Tensor, scales: Tensor, codes: Tensor) -> Codes:
    found = lookup(threes(codes), _table(name), dtypes.uint8)
    return Codes(found, _scale(half(d) * 0.25, scales), SIZES[name][-1])


def _read_iq3_xxs(d: Tensor, scales: Tensor, codes: Tensor) -> Codes:
    found = lookup(unpack(codes, 4, 16), _table("IQ3_XXS"), dtypes.uint8)
    return Codes(found, _scale(half(d) * 0.5, scales), SIZES["IQ3_XXS"][-1])


def _read_iq3_s(d: Tensor, scales: Tensor, codes: Tensor) -> Codes:
    """Values are the odd numbers from -15 to 15."""
    return Codes(unpack(codes, 4, 16) << 1, _scale(half(d) * 2, scales), SIZES["IQ3_S"][-1])


# --- IQ1 -------------------------------------------------------------------------------------------------------------
def _apart(codes: Codes, run: int) -> tuple[Tensor, Tensor]:
    """Split into quants of -1, 0 and 1 [.., values], and a bit per run of values that an eighth is added."""
    above = codes.codes - (codes.zero - _EIGHTHS)
    return above >> 3, above[..., ::run] >> 1 & 1


def iq1_s(d: Tensor, scale: Tensor, codes: Codes) -> dict[str, Tensor]:
    """Repack IQ1_S to the parts; scales from 0 to 7."""
    whole, is_more = _apart(codes, 32)
    return {"d": d, "scales": pack(scale << 1 | is_more, 4, 1), "codes": pack(whole, 2, 8)}


def iq1_m(d: Tensor, scale: Tensor, codes: Codes) -> dict[str, Tensor]:
    """Repack IQ1_M to the parts; scales from 0 to 7."""
    whole, is_more = _apart(codes, 8)
    return {"d": d, "scales": pack(scale << 1 | 1, 4, 1), "more": pack(is_more, 1, 1), "codes": pack(whole, 2, 4)}


def _together(whole: Tensor, is_more: Tensor) -> Tensor:
    """Invert `_apart`: [.., values] and [.., runs] to codes, in eighths."""
    runs = whole.unflatten(-1, (is_more.shape[-1], whole.shape[-1] // is_more.shape[-1]))
    return (runs << 3 | (is_more << 1).unsqueeze(-1)).flatten(-2)


def _read_iq1_s(d: Tensor, scales: Tensor, codes: Tensor) -> Codes:
    both = unpack(scales, 4, 1)
    return Codes(_together(unpack(codes, 2, 8), both & 1), half(d) * 0.125 * (both | 1).float(), _EIGHTHS)


def _read_iq1_m(d: Tensor, scales: Tensor, more: Tensor, codes: Tensor) -> Codes:
    scale = half(d) * 0.125 * unpack(scales, 4, 1).float()
    return Codes(_together(unpack(codes, 2, 4), unpack(more, 1, 1)), scale, _EIGHTHS)


# --- all -------------------------------------------------------------------------------------------------------------
def _form(name: str, read: Callable[..., Codes], sizes: dict[str, int], *axes: int) -> BlockType:
    return BlockType(name, {"d": 2, **sizes}, read, axes=axes, single=("scales", "more"))


_PAIRS = (4, 2, 2, 4, 4)  # two runs of 16 codes in three words
FORMS = {
    form.name: form
    for form in (
        _form("IQ2_XXS", partial(_read_iq2, "IQ2_XXS"), {"scales": 4, "codes": 96}, *_PAIRS),
        _form("IQ2_XS", partial(_read_iq2, "IQ2_XS"), {"scales": 8, "codes": 96}, *_PAIRS),
        _form("IQ2_S", partial(_read_iq2, "IQ2_S"), {"scales": 8, "codes": 96}, *_PAIRS),
        _form("IQ3_XXS", _read_iq3_xxs, {"scales": 4, "codes": 128}, 4, 2, 2, 16),
        _form("IQ3_S", _read_iq3_s, {"scales": 4, "codes": 128}, 4, 2, 2, 16),
        _form("IQ1_S", _read_iq1_s, {"scales": 4, "codes": 64}, 4, 2, 4, 8),
        _form("IQ1_M", _read_iq1_m, {"scales": 8, "more": 4, "codes": 64}, 4, 2, 2, 2, 2, 4),
    )
}
