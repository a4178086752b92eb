"""Dot products of bytes at every level of x86-64 CPUs, with and without an instruction for them, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import Tensor
from kernmill.ir import Context, SettingError, dtypes
from kernmill.quant import QuantizedTensor, block_type
from kernmill.runtime import get_device

LEVELS = ["", "avx512", "avx2", "sse"]
SIZES = [(16, 64, 32), (3, 40, 48), (64, 128, 96), (1, 256, 64), (17, 33, 19)]
TYPES = ["Q8_0", "Q4_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4", "TQ2_0"]
POINTS = ["IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]
Array = np.ndarray[Any, Any]


@pytest.fixture(params=LEVELS, autouse=True)
def level(request: pytest.FixtureRequest) -> Any:
    with Context(DEVICE="LLVM", TARGET=request.param):
        try:
            get_device("LLVM")
        except SettingError as error:
            pytest.skip(str(error))
        yield request.param


def of_bytes(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, most: int = 255) -> Array:
    """Bytes up to `most`; the ends of the dtype stand side by side, where sums of two are largest."""
    found = rng.integers(0, most + 1, shape).astype(np.uint8)
    found.reshape(-1)[: found.size // 2] = most
    if dtype == "int8":
        found.reshape(-1)[: found.size // 3] = 128
    return found.view(dtype)


@pytest.mark.parametrize(("m", "k", "n"), SIZES)
@pytest.mark.parametrize("pair", [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8")])
def test_products(m: int, k: int, n: int, pair: tuple[str, str]) -> None:
    rng = np.random.default_rng(m * k)
    a, b = of_bytes(rng, (m, k), pair[0]), of_bytes(rng, (k, n), pair[1])
    got = (Tensor(a).cast(dtypes.int32) @ Tensor(b).cast(dtypes.int32)).numpy()
    np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32))


@pytest.mark.parametrize("mask", [1, 15, 127, 128, 255])
def test_products_with_codes_of_few_bits(mask: int) -> None:
    """Sums of two products fit 16 bits up to 127 and not beyond."""
    rng = np.random.default_rng(mask)
    x, codes = of_bytes(rng, (1, 64), "int8"), of_bytes(rng, (256, 64), "uint8")
    few = Tensor(codes).reshape(16, 16, 16, 4).permute(0, 2, 1, 3).contiguous() & mask  # words of 16 rows side by side
    terms = few.cast(dtypes.int32) * Tensor(x).reshape(1, 16, 1, 4).cast(dtypes.int32)
    got = (terms.sum((1, 3), dtype=dtypes.int32).float() * 2).numpy()
    want = (codes & np.uint8(mask)).astype(np.int32) @ x.astype(np.int32).T
    np.testing.assert_array_equal(got.reshape(-1), 2.0 * want.reshape(-1))


@pytest.mark.parametrize(
    "name", ["Q8_0", "Q4_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4", "TQ2_0"]
)
@pytest.mark.parametrize("rows", [1, 2, 9, 64])
def test_quantized_products(name: str, rows: int) -> None:
    """x is whole numbers, which blocks of 8 bits hold as they are."""
    rng = np.random.default_rng(rows)
    x = rng.integers(-127, 128, (rows, 512)).astype(np.float32)
    x[:, ::32] = 127.0
    weight = QuantizedTensor.quantize(Tensor(rng.standard_normal((40, 512)).astype(np.float32)), name)
    want = x.astype(np.float64) @ weight.dequantize().numpy().astype(np.float64).T
    got = weight.realize().interleaved().linear(Tensor(x)).numpy()
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * float(np.abs(x).max(1).max()) * 512**0.5 * 3)


@pytest.mark.parametrize("name", POINTS)
@pytest.mark.parametrize("form", ["fast", "small"])
def test_products_with_points(name: str, form: str) -> None:
    """Types that are written slowly: random bytes, with scales that are finite."""
    pytest.importorskip("gguf")
    rng = np.random.default_rng(3)
    blocks = rng.integers(0, 256, (40, 2, block_type(name).size_bytes), np.uint8)
    blocks[..., :2] = np.float16(0.01).tobytes()[0], np.float16(0.01).tobytes()[1]
    x = rng.integers(-127, 128, (3, 512)).astype(np.float32)
    x[:, ::32] = 127.0
    weight = QuantizedTensor(Tensor(blocks), name, (40, 512))
    want = x.astype(np.float64) @ weight.dequantize().numpy().astype(np.float64).T
    with Context(QUANT_FORM=form):
        got = weight.interleaved().linear(Tensor(x)).numpy()
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * float(np.abs(want).max()))
