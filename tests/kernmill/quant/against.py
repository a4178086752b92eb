"""What block types are tested against: the layouts read value by value as they are defined, and the package gguf."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernmill import Tensor
from kernmill.quant import BLOCKS

Array = np.ndarray[Any, np.dtype[Any]]
F32 = np.float32


def random_blocks(name: str, count: int = 12) -> Array:
    """Bytes of blocks: random ones, then all 0, all 255, all 0x80."""
    size = BLOCKS[name].size_bytes
    raw = np.random.default_rng([len(name), size]).integers(0, 256, (count, size), dtype=np.uint8)
    raw[-3:] = np.array([[0], [255], [128]], np.uint8)
    return raw


def same_bits(got: Array, want: Array) -> None:
    """Equal to the last bit; a nan equals any nan."""
    assert (got.shape, got.dtype.name, want.dtype.name) == (want.shape, "float32", "float32")
    is_same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
    assert is_same.all(), f"{(~is_same).sum()} values differ, the first at {np.argwhere(~is_same)[0]}"


def check_read(name: str) -> None:
    """Random blocks read as the layout says."""
    raw = random_blocks(name)
    with np.errstate(all="ignore"):
        want = np.array([BOOK[name](block.tobytes()) for block in raw], np.float32)
    same_bits(BLOCKS[name].decode(Tensor(raw)).numpy(), want)


def check_read_as_the_package(name: str) -> None:
    package = pytest.importorskip("gguf")
    raw = random_blocks(name)
    with np.errstate(all="ignore"):
        want = package.quants.dequantize(raw, package.GGMLQuantizationType[name])
    same_bits(BLOCKS[name].decode(Tensor(raw)).numpy(), want)


def check_write_as_the_package(name: str, x: Array) -> None:
    package = pytest.importorskip("gguf")
    want = package.quants.quantize(x, package.GGMLQuantizationType[name])
    np.testing.assert_array_equal(BLOCKS[name].encode(Tensor(x)).numpy(), want)


def weights(name: str, count: int = 12) -> Array:
    """Blocks of values to write: zeros, one value, ties of size, tiny and large ones, one sign; the rest normal."""
    width = BLOCKS[name].values
    x = np.random.default_rng(width).standard_normal((count, width)).astype(np.float32)
    x[0], x[1], x[2, 2:], x[2, :2] = 0, 1, 0, [-3, 3]
    x[3] *= 1e-30
    x[4] *= 1e4
    x[5] = np.abs(x[5])
    x[6] = -np.abs(x[6])
    x[7] = -2
    return x


def relative_error(name: str, x: Array) -> float:
    """Of writing and reading: root mean square of what is lost, as a part of that of the values."""
    block = BLOCKS[name]
    back = block.decode(block.encode(Tensor(x))).numpy()
    return float(np.sqrt(np.mean((back - x) ** 2.0) / np.mean(x**2.0)))


def check_error(name: str, bound: float, device: str) -> None:
    """On normal values; the reference device is slow and gets few of them."""
    few = device == "PYTHON"
    assert relative_error(name, normal(name, 1024 if few else 16384)) < bound * (1.3 if few else 1)


def normal(name: str, count: int = 4096) -> Array:
    """So many normal values, as blocks."""
    return (
        np.random.default_rng(3).standard_normal((count // BLOCKS[name].values, BLOCKS[name].values)).astype(np.float32)
    )


# --- the layouts, value by value -------------------------------------------------------------------------------------
def half(raw: bytes) -> Any:
    return F32(struct.unpack("<e", raw)[0])


def nibbles(raw: bytes) -> list[int]:
    """The low four bits of all bytes, then the high ones."""
    return [b & 15 for b in raw] + [b >> 4 for b in raw]


def bit(raw: bytes, place: int) -> int:
    return raw[place // 8] >> place % 8 & 1


def q4_0(raw: bytes) -> list[Any]:
    return [half(raw[:2]) * F32(q - 8) for q in nibbles(raw[2:])]


def q4_1(raw: bytes) -> list[Any]:
    return [half(raw[:2]) * F32(q) + half(raw[2:4]) for q in nibbles(raw[4:])]


def q5_0(raw: bytes) -> list[Any]:
    return [half(raw[:2]) * F32((q | bit(raw[2:6], j) << 4) - 16) for j, q in enumerate(nibbles(raw[6:]))]


def q5_1(raw: bytes) -> list[Any]:
    fifth = [q | bit(raw[4:8], j) << 4 for j, q in enumerate(nibbles(raw[8:]))]
    return [half(raw[:2]) * F32(q) + half(raw[2:4]) for q in fifth]


def q8_0(raw: bytes) -> list[Any]:
    return [half(raw[:2]) * F32(q) for q in struct.unpack("<32b", raw[2:])]


def six_bits(raw: bytes, j: int) -> tuple[int, int]:
    """Scale and least value j of the twelve bytes of Q4_K and Q5_K."""
    if j < 4:
        return raw[j] & 63, raw[j + 4] & 63
    return raw[j + 4] & 15 | raw[j - 4] >> 6 << 4, raw[j + 4] >> 4 | raw[j] >> 6 << 4


def q2_k(raw: bytes) -> list[Any]:
    d, least = half(raw[80:82]), half(raw[82:84])
    out = []
    for i in range(256):
        scale = raw[i // 16]
        code = raw[16 + i // 128 * 32 + i % 32] >> 2 * (i // 32 % 4) & 3
        out.append(d * F32(scale & 15) * F32(code) - least * F32(scale >> 4))
    return out


def q3_k(raw: bytes) -> list[Any]:
    scales = raw[96:108]
    out = []
    for i in range(256):
        j = i // 16
        low = scales[j % 8] >> 4 * (j // 8) & 15
        scale = low | (scales[8 + j % 4] >> 2 * (j // 4) & 3) << 4
        code = (raw[32 + i // 128 * 32 + i % 32] >> 2 * (i // 32 % 4) & 3) - 4 * (1 - (raw[i % 32] >> i // 32 & 1))
        out.append(half(raw[108:110]) * F32(scale - 32) * F32(code))
    return out


def q45_k(raw: bytes, start: int) -> list[Any]:
    d, dmin = half(raw[:2]), half(raw[2:4])
    out = []
    for i in range(256):
        scale, least = six_bits(raw[4:16], i // 32)
        code = raw[start + i // 64 * 32 + i % 32] >> 4 * (i // 32 % 2) & 15
        if start > 16:
            code |= (raw[16 + i % 32] >> i // 32 & 1) << 4
        out.append(d * F32(scale) * F32(code) - dmin * F32(least))
    return out


def q6_k(raw: bytes) -> list[Any]:
    scales = struct.unpack("<16b", raw[192:208])
    out = []
    for i in range(256):
        low = raw[i // 128 * 64 + i % 64] >> 4 * (i // 64 % 2) & 15
        high = raw[128 + i // 128 * 32 + i % 32] >> 2 * (i // 32 % 4) & 3
        out.append(half(raw[208:210]) * F32(scales[i // 16]) * F32((low | high << 4) - 32))
    return out


STEPS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
FLOATS = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def iq4_nl(raw: bytes) -> list[Any]:
    return [half(raw[:2]) * F32(STEPS[q]) for q in nibbles(raw[2:])]


def iq4_xs(raw: bytes) -> list[Any]:
    high = int.from_bytes(raw[2:4], "little")
    out = []
    for j in range(8):
        scale = (raw[4 + j // 2] >> 4 * (j % 2) & 15 | (high >> 2 * j & 3) << 4) - 32
        out += [half(raw[:2]) * F32(scale) * F32(STEPS[q]) for q in nibbles(raw[8 + 16 * j : 24 + 16 * j])]
    return out


def mxfp4(raw: bytes) -> list[Any]:
    return [F32(2.0 ** (raw[0] - 128) * FLOATS[q]) for q in nibbles(raw[1:])]


def nvfp4(raw: bytes) -> list[Any]:
    out = []
    for j, scale in enumerate(raw[:4]):
        exponent, fraction = scale >> 3 & 15, scale & 7
        value = fraction * 2.0**-9 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7)
        half_value = 0.0 if scale == 127 else value / 2
        out += [F32(half_value * FLOATS[q]) for q in nibbles(raw[4 + 8 * j : 12 + 8 * j])]
    return out


def tq1_0(raw: bytes) -> list[Any]:
    groups = [(raw[:32], 5), (raw[32:48], 5), (raw[48:52], 4)]
    digits = [(b * 3**n % 256) * 3 >> 8 for part, count in groups for n in range(count) for b in part]
    return [half(raw[52:54]) * F32(digit - 1) for digit in digits]


def tq2_0(raw: bytes) -> list[Any]:
    codes = [raw[i // 128 * 32 + i % 32] >> 2 * (i // 32 % 4) & 3 for i in range(256)]
    return [half(raw[64:66]) * F32(q - 1) for q in codes]


def q1_0(raw: bytes) -> list[Any]:
    return [half(raw[:2]) * F32(2 * bit(raw[2:], i) - 1) for i in range(128)]


def q2_0(raw: bytes) -> list[Any]:
    return [half(raw[:2]) * F32((raw[2 + i // 4] >> 2 * (i % 4) & 3) - 1) for i in range(64)]


BOOK: dict[str, Callable[[bytes], list[Any]]] = {
    "Q4_0": q4_0, "Q4_1": q4_1, "Q5_0": q5_0, "Q5_1": q5_1, "Q8_0": q8_0,
    "Q2_K": q2_k, "Q3_K": q3_k, "Q4_K": lambda raw: q45_k(raw, 16), "Q5_K": lambda raw: q45_k(raw, 48), "Q6_K": q6_k,
    "IQ4_NL": iq4_nl, "IQ4_XS": iq4_xs, "MXFP4": mxfp4, "NVFP4": nvfp4,
    "TQ1_0": tq1_0, "TQ2_0": tq2_0, "Q1_0": q1_0, "Q2_0": q2_0,
}  # fmt: skip
