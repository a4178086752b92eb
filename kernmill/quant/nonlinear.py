"""Blocks whose codes are indices into a table of numbers: IQ4_NL and IQ4_XS (uneven steps), MXFP4 and NVFP4 (4-bit
floats).

Writing IQ4: a few scales are tried for each group, as in k.py. Writing MXFP4: the scale is the power of two below the
largest magnitude, which becomes 4 to 6 times it.
Source: github.com/ggml-org/ggml, src/ggml-common.h; OCP Microscaling Formats 1.0 (E2M1, E8M0).
Tests: tests/kernmill/quant/test_nonlinear.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from kernmill.ir import dtypes

from ..methods.elementwise import where
from ..tensor import Tensor
from .bits import half, half_bytes, lookup, pack, unpack
from .block import BlockType, Codes
from .fitting import inverse, largest, weighed

__all__ = ["BLOCKS", "STEPS"]

STEPS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


# --- 16 uneven steps -------------------------------------------------------------------------------------------------
def _step(codes: Tensor) -> Tensor:
    return lookup(codes, STEPS)


def _nearest(x: Tensor, steps: Sequence[float]) -> Tensor:
    """Return the code of the nearest step, the lower one on a tie: the number of midpoints of rising steps below x."""
    codes = x._filled(0.0).cast(dtypes.uint8)
    for low, high in itertools.pairwise(steps):
        codes = codes + x.gt((low + high) / 2).cast(dtypes.uint8)
    return codes


def _read_iq4_nl(d: Tensor, qs: Tensor) -> Codes:
    return Codes(_step(unpack(qs, 4, 16)), half(d))


def _read_iq4_xs(d: Tensor, scales_h: Tensor, scales_l: Tensor, qs: Tensor) -> Codes:
    scales = (unpack(scales_l, 4, 1) | unpack(scales_h, 2, 1) << 4).float() - 32
    return Codes(_step(unpack(qs, 4, 16)), half(d) * scales)


def _fit(x: Tensor, importance: Tensor | None) -> Tensor:
    """The scale with the smallest error, weighted by the square of a value, or the importance of its column: [..,
    groups, 32] to [.., groups, 1]."""
    weights = x.square() if importance is None else weighed(x, importance)
    reach = inverse(largest(x))
    factors = (STEPS[0] + Tensor.arange(15).float() - 7).reshape(15, 1)
    steps = _step(_nearest(x.unsqueeze(-2) * (factors * reach.unsqueeze(-2)), STEPS)).float()
    sum_xl = ((weights * x).unsqueeze(-2) * steps).sum(-1)
    scale = sum_xl * inverse((weights.unsqueeze(-2) * steps * steps).sum(-1))
    return scale.gather(-1, (scale * sum_xl).argmax(-1, keepdim=True))


def _write_iq4_nl(x: Tensor, importance: Tensor | None = None) -> dict[str, Tensor]:
    weights = None if importance is None else importance.unsqueeze(-2)
    d = half_bytes(_fit(x.unsqueeze(-2), weights).squeeze(-2).contiguous())
    return {"d": d, "qs": pack(_nearest(x * inverse(half(d)), STEPS), 4, 16)}


def _write_iq4_xs(x: Tensor, importance: Tensor | None = None) -> dict[str, Tensor]:
    x = x.unflatten(-1, (8, 32))
    scale = _fit(x, None if importance is None else importance.unflatten(-1, (8, 32))).squeeze(-1).contiguous()
    top = largest(scale)
    scales = (scale * (inverse(top) * -32)).round().clamp(-32, 31)
    d = half_bytes(top / -32)
    codes = _nearest(x * inverse((half(d) * scales).unsqueeze(-1)), STEPS).flatten(-2)
    six = (scales + 32).cast(dtypes.uint8)
    return {"d": d, "scales_h": pack(six >> 4, 2, 1), "scales_l": pack(six & 15, 4, 1), "qs": pack(codes, 4, 16)}


# --- floats of 4 bits ------------------------------------------------------------------------------------------------
DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12)  # twice the numbers that 2 bits of exponent and 1 of fraction make


def _doubled(codes: Tensor) -> Tensor:
    """Return twice the number: the codes 0 to 7 rise, 8 to 15 are their negatives."""
    return lookup(codes, (*DOUBLED, *(-v for v in DOUBLED)))


def _half_power(e: Tensor) -> Tensor:
    """2 ** (e - 128) for bytes: subnormal below 2."""
    wide = e.cast(dtypes.uint32)
    small = where(e.eq(1), wide._filled(0x00400000), wide._filled(0x00200000))
    return where(e.lt(2), small, (wide - 1) << 23).bitcast(dtypes.float32)


def _read_mxfp4(e: Tensor, qs: Tensor) -> Codes:
    return Codes(_doubled(unpack(qs, 4, 16)), _half_power(e))


def _exponent(top: Tensor) -> Tensor:
    """Return the scale of blocks by their largest magnitudes. Below 2 ** -125 no byte exists for it; as in ggml a
    large one is used then, and all codes are 0."""
    is_small = top.lt(2.0**-126)  # subnormal: as bits it has no exponent
    bits = where(is_small, top * 2.0**24, top).bitcast(dtypes.uint32)
    exponent = (bits >> 23).cast(dtypes.int32) - where(is_small, bits._filled(26), bits._filled(2)).cast(dtypes.int32)
    return where(top.eq(0), exponent._filled(0), exponent & 255).cast(dtypes.uint8)


def _write_mxfp4(x: Tensor) -> dict[str, Tensor]:
    e = _exponent(x.abs().max(-1, keepdim=True))
    size = x.abs() * inverse(_half_power(e) * 2) * 2  # the smallest scale has no inverse
    codes = _nearest(size, DOUBLED)
    negative = x.lt(0).logical_and(codes.ne(0))
    return {"e": e, "qs": pack(codes | negative.cast(dtypes.uint8) << 3, 4, 16)}


def _small_float(x: Tensor) -> Tensor:
    """Half of an unsigned float with 4 bits of exponent (bias 7) and 3 of fraction; 127, no number, counts as 0."""
    exponent, fraction = (x >> 3 & 15).cast(dtypes.uint32), x & 7
    normal = ((exponent + 119) << 23 | fraction.cast(dtypes.uint32) << 20).bitcast(dtypes.float32)
    value = where(exponent.eq(0), fraction.float() * 2.0**-10, normal)
    return where(x.eq(127), value._filled(0.0), value)


def _read_nvfp4(d: Tensor, qs: Tensor) -> Codes:
    return Codes(_doubled(unpack(qs, 4, 8)), _small_float(d))


BLOCKS = (
    BlockType("IQ4_NL", {"d": 2, "qs": 16}, _read_iq4_nl, _write_iq4_nl, (2, 16), weighs=True),
    BlockType(
        "IQ4_XS",
        {"d": 2, "scales_h": 2, "scales_l": 4, "qs": 128},
        _read_iq4_xs,
        _write_iq4_xs,
        (4, 2, 2, 16),
        ("scales_h", "scales_l"),
        weighs=True,
    ),
    BlockType("MXFP4", {"e": 1, "qs": 16}, _read_mxfp4, _write_mxfp4, (2, 16)),
    BlockType("NVFP4", {"d": 4, "qs": 32}, _read_nvfp4, axes=(4, 2, 8), single=("d",)),
)
