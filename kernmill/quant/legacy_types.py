"""Blocks of 32 values with one scale: Q4_0, Q5_0 and Q8_0 are scale * code, Q4_1 and Q5_1 scale * code + least.

Rounding follows the reference: codes of the 4- and 5-bit types are truncated after adding a half, those of Q8_0 are
rounded half away from zero. Both use the scale before it is rounded to float16. If the importance of columns is known,
all but Q8_0 search for a scale as the K types do. Source: github.com/ggml-org/ggml,
src/ggml-quants.c (quantize_row_*_ref) for what is written. Tests: tests/kernmill/quant/test_legacy_types.py.
"""

from __future__ import annotations

from functools import partial

from kernmill.ir import dtypes

from ..methods.elementwise import where
from ..tensor import Tensor
from .bits import half, half_bytes, pack, unpack
from .block import BlockType, Codes
from .fitting import fit_around_zero, fit_from_least, inverse, largest, weighed

__all__ = ["BLOCKS", "rounded"]


_TRIES = 19  # scales of a search, where the importance of columns is known


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


def _around_zero(x: Tensor, importance: Tensor | None, half_range: int) -> tuple[Tensor, Tensor]:
    """Return the bytes of the scale, and codes from 0 to 2 * half_range - 1."""
    if importance is None:
        d = largest(x) / -half_range
        return half_bytes(d), _truncated(x * inverse(d) + (half_range + 0.5), 2 * half_range - 1)
    weights = weighed(x.unsqueeze(-2), importance.unsqueeze(-2)).squeeze(-2)
    d = half_bytes(fit_around_zero(x, weights, half_range, _TRIES).contiguous())
    codes = (x * inverse(half(d))).round().clamp(-half_range, half_range - 1) + half_range
    return d, codes.cast(dtypes.uint8)


def _write_q4_0(x: Tensor, importance: Tensor | None = None) -> dict[str, Tensor]:
    d, codes = _around_zero(x, importance, 8)
    return {"d": d, "qs": pack(codes, 4, 16)}


def _read_q5_0(d: Tensor, qh: Tensor, qs: Tensor, run: int = 1) -> Codes:
    return Codes(unpack(qs, 4, 16) | unpack(qh, 1, run) << 4, half(d), 16)


def _write_q5_0(x: Tensor, importance: Tensor | None = None) -> dict[str, Tensor]:
    d, codes = _around_zero(x, importance, 16)
    return {"d": d, "qh": pack(codes >> 4, 1, 1), "qs": pack(codes & 15, 4, 16)}


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


def _from_least(x: Tensor, importance: Tensor | None, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the bytes of scale and least value, and codes 0 to `most`."""
    if importance is not None:
        weights = weighed(x.unsqueeze(-2), importance.unsqueeze(-2)).squeeze(-2)
        scale, below = fit_from_least(x, weights, most, _TRIES, -1)
        d, m = half_bytes(scale.contiguous()), half_bytes(-below.contiguous())
        return d, m, ((x - half(m)) * inverse(half(d))).round().clamp(0, most).cast(dtypes.uint8)
    least = x.min(-1, keepdim=True)
    d = (x.max(-1, keepdim=True) - least) / most
    return half_bytes(d), half_bytes(least), _truncated((x - least) * inverse(d) + 0.5, most)


def _write_q4_1(x: Tensor, importance: Tensor | None = None) -> dict[str, Tensor]:
    d, m, codes = _from_least(x, importance, 15)
    return {"d": d, "m": m, "qs": pack(codes, 4, 16)}


def _write_q5_1(x: Tensor, importance: Tensor | None = None) -> dict[str, Tensor]:
    d, m, codes = _from_least(x, importance, 31)
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
    BlockType("Q4_0", {"d": 2, "qs": 16}, _read_q4_0, _write_q4_0, (2, 16), weighs=True),
    BlockType("Q4_1", {"d": 2, "m": 2, "qs": 16}, _read_q4_1, _write_q4_1, (2, 16), weighs=True),
    BlockType("Q5_0", _Q5_0, _read_q5_0, _write_q5_0, (2, 16), laid=(_INTERLEAVED[0], _in_words), weighs=True),
    BlockType("Q5_1", _Q5_1, _read_q5_1, _write_q5_1, (2, 16), laid=(_INTERLEAVED[1], _in_words), weighs=True),
    BlockType("Q8_0", {"d": 2, "qs": 32}, _read_q8_0, _write_q8_0),
)
