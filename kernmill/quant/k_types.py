"""Blocks of 256 values in groups with separate small scales, which share a float16 scale: Q2_K to Q6_K.

Q2_K, Q4_K and Q5_K are scale * code - least, Q3_K and Q6_K scale * code with codes around 0. Writing tries some scales
for each group. It computes the best real scale (and least value) for the resulting codes by weighted least squares, and
takes the one with the smallest error. Then the scales are rounded, and the codes computed again. Source:
github.com/ggml-org/ggml, src/ggml-common.h (layouts) and src/ggml-quants.c (how many scales, which weights). Tests:
tests/kernmill/quant/test_k_types.py.
"""

from __future__ import annotations

from kernmill.ir import dtypes

from ..methods.movement import cat
from ..tensor import Tensor
from .bits import half, half_bytes, pack, pack_threes, threes, unpack, words
from .block import BlockType, Codes
from .fitting import fit_around_zero, fit_from_least, inverse, largest, weighed

__all__ = ["BLOCKS"]


# --- scales in 6 bits ------------------------------------------------------------------------------------------------
def _scales_and_leasts(scales: Tensor) -> Tensor:
    """Unpack twelve bytes to 8 scales and 8 least values of 6 bits, [.., 2, 8]: the first 4 of each are whole, the
    others are in the remaining bits."""
    low = scales[..., :8].unflatten(-1, (2, 4))
    high = unpack(scales[..., 8:], 4, 4).unflatten(-1, (2, 4)) | low >> 6 << 4
    return cat([low & 63, high], axis=-1)


def _packed_scales(scales: Tensor, leasts: Tensor) -> Tensor:
    both = cat([scales.unsqueeze(-2), leasts.unsqueeze(-2)], axis=-2).cast(dtypes.uint8)
    low, high = both[..., :4], both[..., 4:]
    return cat([(low | high >> 4 << 6).flatten(-2), pack((high & 15).flatten(-2), 4, 4)], axis=-1)


def _sixteen_scales(scales: Tensor) -> Tensor:
    """Twelve bytes as 16 scales of 6 bits: 4 low bits each in the first 8, 2 high bits each in the others."""
    return unpack(scales[..., :8], 4, 8) | unpack(scales[..., 8:], 2, 4) << 4


# --- reading ---------------------------------------------------------------------------------------------------------
def _from_least(codes: Tensor, d: Tensor, dmin: Tensor, scales: Tensor, leasts: Tensor) -> Codes:
    return Codes(codes, half(d) * scales.float(), offset=-half(dmin) * leasts.float())


def _read_q2_k(scales: Tensor, qs: Tensor, d: Tensor, dmin: Tensor, run: int = 32) -> Codes:
    return _from_least(unpack(qs, 2, run), d, dmin, scales & 15, scales >> 4)


def _read_q3_k(hmask: Tensor, qs: Tensor, scales: Tensor, d: Tensor) -> Codes:
    scale = half(d) * (_sixteen_scales(scales).float() - 32)
    return Codes(unpack(qs, 2, 32) | unpack(hmask, 1, 32) << 2, scale, 4)


def _read_q4_k(d: Tensor, dmin: Tensor, scales: Tensor, qs: Tensor) -> Codes:
    both = _scales_and_leasts(scales)
    return _from_least(unpack(qs, 4, 32), d, dmin, both[..., 0, :], both[..., 1, :])


def _read_q5_k(d: Tensor, dmin: Tensor, scales: Tensor, qh: Tensor, qs: Tensor) -> Codes:
    both = _scales_and_leasts(scales)
    return _from_least(unpack(qs, 4, 32) | unpack(qh, 1, 32) << 4, d, dmin, both[..., 0, :], both[..., 1, :])


def _read_q6_k(ql: Tensor, qh: Tensor, scales: Tensor, d: Tensor) -> Codes:
    codes = unpack(ql, 4, 64) | unpack(qh, 2, 32) << 4
    return Codes(codes, half(d) * scales.bitcast(dtypes.int8).float(), 32)


# --- writing ---------------------------------------------------------------------------------------------------------
def _shared(scales: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Round non-negative scales [.., n] to integers 0 to `most`; also return the float16 bytes of their unit."""
    top = scales.max(-1, keepdim=True)
    return (scales * (inverse(top) * most)).round().clamp(0, most), half_bytes(top / most)


def _write_from_least(
    x: Tensor, importance: Tensor | None, groups: int, most: int, tries: int, most_scale: int
) -> dict[str, Tensor]:
    """Return the parts d and dmin, the scales and least values of the groups as integers, and the codes."""
    x = x.unflatten(-1, (groups, 256 // groups))
    if importance is None:
        size = x.abs()
        weights = size if most == 3 else x.square().mean(-1, keepdim=True).sqrt() + size
    else:
        weights = weighed(x, importance.unflatten(-1, (groups, 256 // groups)))
    scale, least = (
        v.squeeze(-1).contiguous() for v in fit_from_least(x, weights, most, tries, -1 if most == 15 else -0.5)
    )
    (scales, d), (leasts, dmin) = _shared(scale, most_scale), _shared(least, most_scale)
    unit, offset = (half(d) * scales).unsqueeze(-1), (half(dmin) * leasts).unsqueeze(-1)
    codes = ((x + offset) * inverse(unit)).round().clamp(0, most).cast(dtypes.uint8).flatten(-2)
    return {"d": d, "dmin": dmin, "scale": scales, "least": leasts, "codes": codes}


def _write_q2_k(x: Tensor, importance: Tensor | None = None) -> dict[str, Tensor]:
    parts = _write_from_least(x, importance, 16, 3, 16, 15)
    scales = parts["scale"].cast(dtypes.uint8) | parts["least"].cast(dtypes.uint8) << 4
    return {"d": parts["d"], "dmin": parts["dmin"], "scales": scales, "qs": pack(parts["codes"], 2, 32)}


def _write_q4_k(x: Tensor, importance: Tensor | None = None) -> dict[str, Tensor]:
    parts = _write_from_least(x, importance, 8, 15, 21, 63)
    scales = _packed_scales(parts["scale"], parts["least"])
    return {"d": parts["d"], "dmin": parts["dmin"], "scales": scales, "qs": pack(parts["codes"], 4, 32)}


def _write_q5_k(x: Tensor, importance: Tensor | None = None) -> dict[str, Tensor]:
    parts = _write_from_least(x, importance, 8, 31, 16, 63)
    scales, codes = _packed_scales(parts["scale"], parts["least"]), parts["codes"]
    low, high = pack(codes & 15, 4, 32), pack(codes >> 4, 1, 32)
    return {"d": parts["d"], "dmin": parts["dmin"], "scales": scales, "qh": high, "qs": low}


def _write_around_zero(
    x: Tensor, importance: Tensor | None, half_range: int, most_scale: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the part d, the signed scales of 16 groups as integers, and the codes from 0 on."""
    x = x.unflatten(-1, (16, 16))
    if importance is None:
        weights = x.square().mean(-1, keepdim=True) + x.square()
    else:
        weights = weighed(x, importance.unflatten(-1, (16, 16)))
    scale = fit_around_zero(x, weights, half_range, 19).squeeze(-1).contiguous()
    reach = inverse(largest(scale))
    scales = (scale * (-most_scale * reach)).round().clamp(-most_scale, most_scale - 1)
    d = half_bytes(largest(scale) / -most_scale)
    unit = (half(d) * scales).unsqueeze(-1)
    codes = (x * inverse(unit)).round().clamp(-half_range, half_range - 1) + half_range
    return d, scales, codes.cast(dtypes.uint8).flatten(-2)


def _write_q3_k(x: Tensor, importance: Tensor | None = None) -> dict[str, Tensor]:
    d, scales, codes = _write_around_zero(x, importance, 4, 32)
    six = (scales + 32).cast(dtypes.uint8)
    packed = cat([pack(six & 15, 4, 8), pack(six >> 4, 2, 4)], axis=-1)
    return {"d": d, "scales": packed, "hmask": pack(codes >> 2, 1, 32), "qs": pack(codes & 3, 2, 32)}


def _write_q6_k(x: Tensor, importance: Tensor | None = None) -> dict[str, Tensor]:
    d, scales, codes = _write_around_zero(x, importance, 32, 128)
    bytes_ = scales.cast(dtypes.int8).bitcast(dtypes.uint8)
    return {"d": d, "scales": bytes_, "ql": pack(codes & 15, 4, 64), "qh": pack(codes >> 4, 2, 32)}


# --- interleaved rows ------------------------------------------------------------------------------------------------
def _sixes(x: Tensor) -> Tensor:
    """Unpack numbers of 6 bits, four in three bytes: one in the low bits of each, the fourth in the remaining bits."""
    three = x.unflatten(-1, (x.shape[-1] // 3, 3))
    rest = three >> 6
    fourth = rest[..., :1] | rest[..., 1:2] << 2 | rest[..., 2:] << 4
    return cat([three & 63, fourth], axis=-1).flatten(-2)


def _packed_sixes(x: Tensor) -> Tensor:
    four = x.unflatten(-1, (x.shape[-1] // 4, 4))
    parts = [four[..., number : number + 1] | (four[..., 3:] >> 2 * number & 3) << 6 for number in range(3)]
    return cat(parts, axis=-1).flatten(-2)


def _q2_k_by_groups(scales: Tensor, qs: Tensor, d: Tensor, dmin: Tensor) -> dict[str, Tensor]:
    """Repack the codes of four groups in 16 bytes, each group in two bits of all of them, after the scales of the
    four."""
    by_groups = pack(unpack(qs, 2, 32), 2, 16).unflatten(-1, (4, 16))
    codes = cat([scales.unflatten(-1, (4, 4)), by_groups], axis=-1)
    return {"d": d, "dmin": dmin, "codes": codes.flatten(-2)}


def _interleaved_q2_k(d: Tensor, dmin: Tensor, codes: Tensor) -> Codes:
    scales, qs = codes.unflatten(-1, (4, 20)).split([4, 16], axis=-1)
    both = (words(scales, dtypes.uint32) >> (Tensor.arange(4, dtype=dtypes.uint32) * 8)).flatten(-2)
    return _from_least(unpack(qs.flatten(-2), 2, 16), d, dmin, both & 15, both >> 4 & 15)


def _q3_k_by_pairs(hmask: Tensor, qs: Tensor, scales: Tensor, d: Tensor) -> dict[str, Tensor]:
    """Repack the codes of two groups in three words."""
    codes = pack_threes(unpack(qs, 2, 32) | unpack(hmask, 1, 32) << 2)
    return {"d": d, "scales": _packed_sixes(_sixteen_scales(scales)), "codes": codes}


def _interleaved_q3_k(d: Tensor, scales: Tensor, codes: Tensor) -> Codes:
    return Codes(threes(codes), half(d) * (_sixes(scales).float() - 32), 4)


def _in_pairs(scales: Tensor) -> Tensor:
    """Scales and least values of two groups in three bytes."""
    return _packed_sixes(_scales_and_leasts(scales).unflatten(-1, (4, 2)).transpose(-3, -2).flatten(-3))


def _q4_k_by_pairs(d: Tensor, dmin: Tensor, scales: Tensor, qs: Tensor) -> dict[str, Tensor]:
    return {"d": d, "dmin": dmin, "scales": _in_pairs(scales), "qs": qs}


def _q5_k_by_pairs(d: Tensor, dmin: Tensor, scales: Tensor, qh: Tensor, qs: Tensor) -> dict[str, Tensor]:
    """Repack the fifth bits of two groups in eight bytes, before their other bits."""
    high = pack(unpack(qh, 1, 32), 1, 8)
    codes = cat([high.unflatten(-1, (4, 8)), qs.unflatten(-1, (4, 32))], axis=-1)
    return {"d": d, "dmin": dmin, "scales": _in_pairs(scales), "codes": codes.flatten(-2)}


def _read_pairs(d: Tensor, dmin: Tensor, scales: Tensor, codes: Tensor) -> Codes:
    both = _sixes(scales).unflatten(-1, (4, 2, 2))
    return _from_least(codes, d, dmin, both[..., 0, :].flatten(-2), both[..., 1, :].flatten(-2))


def _interleaved_q4_k(d: Tensor, dmin: Tensor, scales: Tensor, qs: Tensor) -> Codes:
    return _read_pairs(d, dmin, scales, unpack(qs, 4, 32))


def _interleaved_q5_k(d: Tensor, dmin: Tensor, scales: Tensor, codes: Tensor) -> Codes:
    high, low = codes.unflatten(-1, (4, 40)).split([8, 32], axis=-1)
    return _read_pairs(d, dmin, scales, (unpack(low, 4, 32) | unpack(high, 1, 8) << 4).flatten(-2))


def _q6_k_by_bytes(ql: Tensor, qh: Tensor, scales: Tensor, d: Tensor) -> dict[str, Tensor]:
    """Repack the data of 64 values contiguously: values whose two high bits are in the same 16 bytes."""
    low, high = ql.unflatten(-1, (2, 2, 2, 16)), qh.unflatten(-1, (2, 1, 2, 16))
    codes = cat([low, high], axis=-3).transpose(-3, -2).flatten(-4)
    return {"d": d, "scales": scales.unflatten(-1, (2, 4, 2)).transpose(-2, -1).flatten(-3), "codes": codes}


def _interleaved_q6_k(d: Tensor, scales: Tensor, codes: Tensor) -> Codes:
    runs = codes.unflatten(-1, (4, 48))
    values = (unpack(runs[..., :32], 4, 32) | unpack(runs[..., 32:], 2, 16) << 4).unflatten(-2, (2, 2))
    small = scales.unflatten(-1, (2, 2, 4)).transpose(-2, -1).flatten(-3).bitcast(dtypes.int8)
    return Codes(values.unflatten(-1, (4, 16)).transpose(-3, -2).flatten(-4), half(d) * small.float(), 32)


_SMALL = ("scales",)
_Q2_K = BlockType("Q2_K", {"d": 2, "dmin": 2, "codes": 80}, _interleaved_q2_k, None, (4, 4, 4, 4))
_Q3_K = BlockType("Q3_K", {"d": 2, "scales": 12, "codes": 96}, _interleaved_q3_k, None, (4, 2, 2, 4, 4), _SMALL)
_Q4_K = BlockType("Q4_K", {"d": 2, "dmin": 2, "scales": 12, "qs": 128}, _interleaved_q4_k, None, (4, 2, 32), _SMALL)
_Q5_K = BlockType("Q5_K", {"d": 2, "dmin": 2, "scales": 12, "codes": 160}, _interleaved_q5_k, None,
                  (4, 2, 4, 8), _SMALL)  # fmt: skip
_Q6_K = BlockType("Q6_K", {"d": 2, "scales": 16, "codes": 192}, _interleaved_q6_k, None, (2, 4, 2, 16), _SMALL)

BLOCKS = (
    BlockType("Q2_K", {"scales": 16, "qs": 64, "d": 2, "dmin": 2}, _read_q2_k, _write_q2_k,
              (2, 4, 2, 16), _SMALL, (_Q2_K, _q2_k_by_groups), weighs=True),
    BlockType("Q3_K", {"hmask": 32, "qs": 64, "scales": 12, "d": 2}, _read_q3_k, _write_q3_k,
              (2, 4, 2, 16), _SMALL, (_Q3_K, _q3_k_by_pairs), weighs=True),
    BlockType("Q4_K", {"d": 2, "dmin": 2, "scales": 12, "qs": 128}, _read_q4_k, _write_q4_k,
              (4, 2, 32), _SMALL, (_Q4_K, _q4_k_by_pairs), weighs=True),
    BlockType("Q5_K", {"d": 2, "dmin": 2, "scales": 12, "qh": 32, "qs": 128}, _read_q5_k, _write_q5_k,
              (4, 2, 32), _SMALL, (_Q5_K, _q5_k_by_pairs), weighs=True),
    BlockType("Q6_K", {"ql": 128, "qh": 64, "scales": 16, "d": 2}, _read_q6_k, _write_q6_k,
              (2, 4, 2, 16), _SMALL, (_Q6_K, _q6_k_by_bytes), weighs=True),
)  # fmt: skip
