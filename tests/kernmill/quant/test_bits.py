"""Bytes, codes and wide numbers: there and back, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from kernmill import Tensor, dtypes
from kernmill.quant.bits import half, half_bytes, lookup, pack, pack_threes, threes, unpack, words

RAW = np.random.default_rng(1).integers(0, 256, (3, 16), dtype=np.uint8)


def test_words() -> None:
    np.testing.assert_array_equal(words(Tensor(RAW), dtypes.uint16).numpy(), RAW.view("<u2"))
    np.testing.assert_array_equal(words(Tensor(RAW), dtypes.uint32).numpy(), RAW.view("<u4"))


def test_every_half() -> None:
    bits = np.arange(1 << 16, dtype="<u2")
    values = half(Tensor(bits.view(np.uint8))).numpy()
    np.testing.assert_array_equal(values, bits.view(np.float16).astype(np.float32))
    back = half_bytes(Tensor(values)).numpy().view("<u2")
    np.testing.assert_array_equal(back.view(np.float16), bits.view(np.float16))


def test_halves_are_rounded_to_even() -> None:
    values = np.array([[1 + 2**-11, 1 + 3 * 2**-11, 70000.0, 1e-9]], np.float32)
    with np.errstate(over="ignore"):
        want = values.astype(np.float16)
    np.testing.assert_array_equal(half_bytes(Tensor(values)).numpy(), want.view(np.uint8))


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("group", [1, 4, 16])
def test_unpack_and_pack(bits: int, group: int) -> None:
    codes = unpack(Tensor(RAW), bits, group)
    planes = [
        raw >> bits * plane & (1 << bits) - 1
        for raw in RAW.reshape(3, -1, group).swapaxes(0, 1) for plane in range(8 // bits)
    ]  # fmt: skip
    np.testing.assert_array_equal(codes.numpy(), np.concatenate(planes, axis=-1))
    np.testing.assert_array_equal(pack(codes, bits, group).numpy(), RAW)


def test_threes() -> None:
    """Two runs of 16 codes in three words."""
    codes = np.random.default_rng(2).integers(0, 8, (3, 64), dtype=np.uint8)
    packed = pack_threes(Tensor(codes))
    assert packed.shape == (3, 24)
    np.testing.assert_array_equal(threes(packed).numpy(), codes)
    low, high = codes[0, :32].reshape(2, 4, 4)
    np.testing.assert_array_equal(packed.numpy()[0, :4], low[0] | high[0] << 3 | low[3] << 6)


def test_flags() -> None:
    np.testing.assert_array_equal(unpack(Tensor(RAW), 1, 1).numpy(), np.unpackbits(RAW, axis=-1, bitorder="little"))


@pytest.mark.parametrize("size", [2, 3, 5, 8, 16])
def test_lookup(size: int) -> None:
    table = tuple(range(-size, 0))
    codes = Tensor(np.arange(size, dtype=np.uint8))
    assert lookup(codes, table).tolist() == list(table)
    assert lookup(codes, table).dtype is dtypes.int8
    assert lookup(codes, [v / 2 for v in table], dtypes.float32).tolist() == [v / 2 for v in table]
