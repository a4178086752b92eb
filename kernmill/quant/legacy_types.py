"""Blocks of 32 values with one scale: Q4_0, Q5_0 and Q8_0 are scale * code, Q4_1 and Q5_1 scale * code + least.

Rounding follows the reference: codes of the 4- and 5-bit types are truncated after adding a half, those of Q8_0 are
rounded half away from zero. Both use the scale before it is rounded to float16. Source: github.com/ggml-org/ggml,
src/ggml-quants.c (quantize_row_*_ref) for what is written. Tests: tests/kernmill/quant/test_legacy_types.py.
"""

from __future__ import annotations

from functools import partial

from kernmill.ir import dtypes

from ..methods.elementwise import where
from ..tensor import Tensor
from .bits import half, half_bytes, pack, unpack
from .block import BlockType, Codes

__all__ = ["BLOCKS", "inverse", "largest", "rounded"]


def inverse(x: Tensor) -> Tensor:
    """1 / x, and 0 for 0."""
    return where(x.eq(0), x._filled(0.0), x.reciprocal())


def largest(x: Tensor) -> Tensor:
    """The value of the largest magnitude along the last axis, the first of several: [.., n] to [.., 1]."""
    most, least = x.max(-1, keepdim=True), x.min(-1, keepdim=True)
    first = x.gather(-1, x.abs().argmax(-1, keepdim=True))
    return where(most.eq(-least), first, where(most.gt(-least), most, least))


def rounded(x: Tensor) -> Tensor:
    """Round to the nearest integer, half away from zero."""
    size = x.abs()
    whole = size.floor()
    up = (size - whole).ge(0.5)
    return where(x.lt(0), -(whole + up.float()), whole + up.float())


def _truncated(x: Tensor, most: int) -> Tensor:
    return x.trunc().clamp(0, most).cast(dtypes.uint8)


# --- scale * code ----------------------------------------------------------------------------------------------------
def _read_q4_0(d: Tensor, qs: Tensor) -> Codes:
    return Codes(unpack(qs, 4, 16), half(d), 8)


def _write_q4_0(x: Tensor) -> dict[str, Tensor]:
    d = largest(x) / -8
    return {"d": half_bytes(d), "qs": pack(_truncated(x * inverse(d) + 8.5, 15), 4, 16)}


def _read_q5_0(d: Tensor, qh: Tensor, qs: Tensor, run: int = 1) -> Codes:
    return Codes(unpack(qs, 4, 16) | unpack(qh, 1, run) << 4, half(d), 16)


def _write_q5_0(x: Tensor) -> dict[str, Tensor]:
    d = largest(x) / -16
    codes = _truncated(x * inverse(d) + 16.5, 31)
    return {"d": half_bytes(d), "qh": pack(codes >> 4, 1, 1), "qs": pack(codes & 15, 4, 16)}


def _read_q8_0(d: Tensor, qs: Tensor) -> Codes:
    return Codes(qs.bitcast(dtypes.int8), half(d))


def _write_q8_0(x: Tensor) -> dict[str, Tensor]:
    d = x.abs().max(-1, keepdim=True) / 127
    return {"d": half_bytes(d), "qs": rounded(x * inverse(d)).cast(dtypes.int8).bitcast(dtypes.uint8)}


# --- scale * code + least --------------------------------------------------------------------------------------------
def _read_q4_1(d: Tensor, m: Tensor, qs: Tensor) -> Codes:
    return Codes(unpack(qs, 4, 16), half(d), offset=half(m))


def _read_q5_1(d: Tensor, m: Tensor, qh: Tensor, qs: Tensor, run: int = 1) -> Codes:
    return Codes(unpack(qs, 4, 16) | unpack(qh, 1, run) << 4, half(d), offset=half(m))


def _from_least(x: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return scale, least value, and codes 0 to `most`."""
    least = x.min(-1, keepdim=True)
    d = (x.max(-1, keepdim=True) - least) / most
    return half_bytes(d), half_bytes(least), _truncated((x - least) * inverse(d) + 0.5, most)


def _write_q4_1(x: Tensor) -> dict[str, Tensor]:
    d, m, codes = _from_least(x, 15)
    return {"d": d, "m": m, "qs": pack(codes, 4, 16)}


def _write_q5_1(x: Tensor) -> dict[str, Tensor]:
    d, m, codes = _from_least(x, 31)
    return {"d": d, "m": m, "qh": pack(codes >> 4, 1, 1), "qs": pack(codes & 15, 4, 16)}


# --- interleaved rows ------------------------------------------------------------------------------------------------
def _in_words(qh: Tensor, **others: Tensor) -> dict[str, Tensor]:
    """Repack the fifth bits: four values that are used together have the same bit position in each of four bytes."""
    return {**others, "qh": pack(unpack(qh, 1, 1), 1, 4)}


_Q5_0, _Q5_1 = {"d": 2, "qh": 4, "qs": 16}, {"d": 2, "m": 2, "qh": 4, "qs": 16}
_INTERLEAVED = (
    BlockType("Q5_0", _Q5_0, partial(_read_q5_0, run=4), None, (2, 16)),
    BlockType("Q5_1", _Q5_1, partial(_read_q5_1, run=4), None, (2, 16)),
)

BLOCKS = (
    BlockType("Q4_0", {"d": 2, "qs": 16}, _read_q4_0, _write_q4_0, (2, 16)),
    BlockType("Q4_1", {"d": 2, "m": 2, "qs": 16}, _read_q4_1, _write_q4_1, (2, 16)),
    BlockType("Q5_0", _Q5_0, _read_q5_0, _write_q5_0, (2, 16), laid=(_INTERLEAVED[0], _in_words)),
    BlockType("Q5_1", _Q5_1, _read_q5_1, _write_q5_1, (2, 16), laid=(_INTERLEAVED[1], _in_words)),
    BlockType("Q8_0", {"d": 2, "qs": 32}, _read_q8_0, _write_q8_0),
)
