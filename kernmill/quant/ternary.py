"""Blocks with two, three or four values per quant and one scale: Q1_0 (-1, 1), TQ1_0 and TQ2_0 (-1, 0, 1), Q2_0 (-1 to
2).

TQ1_0 stores five base-3 digits in a byte, as a fraction of 256: multiplied by 3, the overflow of the byte is the next
digit. Source: github.com/ggml-org/ggml, src/ggml-common.h and src/ggml-quants.c. Tests:
tests/kernmill/quant/test_ternary.py.
"""

from __future__ import annotations

from functools import partial

from kernmill.ir import dtypes

from ..methods.movement import cat
from ..tensor import Tensor
from .bits import half, half_bytes, lookup, pack, unpack
from .block import BlockType, Codes
from .fitting import inverse
from .legacy_types import rounded

__all__ = ["BLOCKS"]

POWERS = (1, 3, 9, 27, 81)


def _read_q1_0(d: Tensor, qs: Tensor, run: int = 1) -> Codes:
    return Codes(unpack(qs, 1, run) * 2, half(d), 1)


def _read_twos(d: Tensor, qs: Tensor, run: int) -> Codes:
    return Codes(unpack(qs, 2, run), half(d), 1)


def _digits(x: Tensor, count: int) -> Tensor:
    """Return the first `count` digits of all bytes, then the second ones, ..: [.., n] to [.., count * n]."""
    powers = lookup(Tensor.arange(count, dtype=dtypes.uint8), POWERS[:count], dtypes.uint8).unsqueeze(-1)
    shifted = x.unsqueeze(-2) * powers  # wraps: earlier digits are gone
    return ((shifted.cast(dtypes.uint16) * 3) >> 8).flatten(-2)


def _tq1_0_codes(qs: Tensor, qh: Tensor) -> Tensor:
    digits = cat([_digits(qs[..., :32], 5), _digits(qs[..., 32:], 5), _digits(qh, 4)], axis=-1)
    return digits.cast(dtypes.uint8)


def _read_tq1_0(qs: Tensor, qh: Tensor, d: Tensor) -> Codes:
    return Codes(_tq1_0_codes(qs, qh), half(d), 1)


def _ternary(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scale and the codes 0 to 2."""
    d = x.abs().max(-1, keepdim=True)
    return half_bytes(d), (rounded(x * inverse(d)) + 1).cast(dtypes.uint8)


def _write_tq2_0(x: Tensor) -> dict[str, Tensor]:
    d, codes = _ternary(x)
    return {"qs": pack(codes, 2, 32), "d": d}


def _bytes(digits: Tensor, count: int) -> Tensor:
    """Invert `_digits`: the number of `count` digits as a fraction of 256, rounded up."""
    planes = digits.unflatten(-1, (count, digits.shape[-1] // count)).cast(dtypes.uint32)
    number = planes[..., 0, :]
    for digit in range(1, 5):
        number = number * 3 + planes[..., digit, :] if digit < count else number * 3
    return ((number * 256 + 242) // 243).cast(dtypes.uint8)


def _write_tq1_0(x: Tensor) -> dict[str, Tensor]:
    d, codes = _ternary(x)
    first, second, rest = codes.split([160, 80, 16], axis=-1)
    return {"qs": cat([_bytes(first, 5), _bytes(second, 5)], axis=-1), "qh": _bytes(rest, 4), "d": d}


# --- interleaved rows ------------------------------------------------------------------------------------------------
def _by_runs(bits: int, run: int, d: Tensor, qs: Tensor) -> dict[str, Tensor]:
    """Repack the codes of 32 values in adjacent words, four values in the same bits of a word's bytes."""
    return {"d": d, "qs": pack(unpack(qs, bits, run), bits, 4 * bits)}


def _tq1_0_by_twos(qs: Tensor, qh: Tensor, d: Tensor) -> dict[str, Tensor]:
    """Decode to two bits per code, like TQ2_0."""
    return {"d": d, "qs": pack(_tq1_0_codes(qs, qh), 2, 8)}


_TQ1_0 = BlockType("TQ1_0", {"d": 2, "qs": 64}, partial(_read_twos, run=8), None, (8, 4, 8))
_Q1_0 = BlockType("Q1_0", {"d": 2, "qs": 16}, partial(_read_q1_0, run=4), None, (4, 8, 4))
_Q2_0 = BlockType("Q2_0", {"d": 2, "qs": 16}, partial(_read_twos, run=8), None, (2, 4, 8))
_TQ2_0 = BlockType("TQ2_0", {"d": 2, "qs": 64}, partial(_read_twos, run=8), None, (8, 4, 8))

BLOCKS = (
    BlockType("TQ1_0", {"qs": 48, "qh": 4, "d": 2}, _read_tq1_0, _write_tq1_0, written=(_TQ1_0, _tq1_0_by_twos)),
    BlockType("TQ2_0", {"qs": 64, "d": 2}, partial(_read_twos, run=32), _write_tq2_0, (2, 4, 32),
              laid=(_TQ2_0, partial(_by_runs, 2, 32))),
    BlockType("Q1_0", {"d": 2, "qs": 16}, _read_q1_0, laid=(_Q1_0, partial(_by_runs, 1, 1))),
    BlockType("Q2_0", {"d": 2, "qs": 16}, partial(_read_twos, run=1), laid=(_Q2_0, partial(_by_runs, 2, 1))),
)  # fmt: skip
