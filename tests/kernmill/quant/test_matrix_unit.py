"""Products of many rows through a matrix unit, which functions stand for: nearer than with rows in 8 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import Context, DType, Tensor, dtypes, jit
from kernmill.quant import BLOCKS, MANY_ROWS, QuantizedTensor, float_linear, float_unit, matrix_unit
from tests.kernmill.against import only_on

TYPES = ["Q4_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K", "IQ4_NL", "TQ2_0"]
Array = np.ndarray[Any, Any]

on_device = only_on("LLVM", TARGET="amx")


def rows(count: int, n: int) -> Array:
    return np.random.default_rng(count).standard_normal((count, n)).astype(np.float32)


def error(got: Tensor, want: Array) -> float:
    """Of the root of the mean square, as a share of it."""
    assert got.shape == want.shape
    assert got.dtype is dtypes.float32
    return float(np.linalg.norm(got.numpy() - want) / np.linalg.norm(want))


def quantized(name: str, count: int, n: int) -> QuantizedTensor:
    return QuantizedTensor.quantize(Tensor(rows(count, n)), name).realize().interleaved()


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize(("count", "columns", "blocks"), [(MANY_ROWS, 32, 1), (MANY_ROWS + 7, 40, 2)])
def test_quantized_weights(name: str, count: int, columns: int, blocks: int) -> None:
    n = blocks * max(64, BLOCKS[name].values)
    weight, x = quantized(name, columns, n), rows(count, n)
    want = x.astype(np.float64) @ weight.dequantize().numpy().astype(np.float64).T
    assert error(weight.linear(Tensor(x)), want) < 2**-8
    assert error(weight.linear(Tensor(x).reshape(1, count, n))[0], want) < 2**-8
    with Context(QUANT_ACT="float"):
        assert error(weight.linear(Tensor(x)), want) < 2e-6


def test_few_rows_are_quantized() -> None:
    weight, x = quantized("Q8_0", 32, 64), Tensor(rows(MANY_ROWS, 64))
    with Context(TARGET="avx2"):
        few = weight.linear(x).numpy()
    np.testing.assert_allclose(weight.linear(x[: MANY_ROWS - 1]).numpy(), few[:-1], rtol=1e-5, atol=1e-5)
    assert np.abs(weight.linear(x).numpy() - few).max() > 1e-4


def test_a_large_weight_is_decoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = quantized("Q4_0", 80, 512), rows(MANY_ROWS, 512)
    want = weight.linear(Tensor(x)).numpy()
    monkeypatch.setattr(matrix_unit, "_DECODED_BYTES", 2 * 16 * 512 * 2)
    np.testing.assert_array_equal(weight.linear(Tensor(x)).numpy(), want)


def test_rows_that_are_not_finite() -> None:
    weight, x = quantized("Q8_0", 32, 64), rows(MANY_ROWS, 64)
    x[3, 5], x[4, 6], x[5] = np.nan, np.inf, 0
    got = weight.linear(Tensor(x)).numpy()
    assert np.isnan(got[3]).all()
    assert not np.isfinite(got[4]).any()
    assert (got[5] == 0).all()
    assert np.isfinite(np.delete(got, (3, 4), 0)).all()


@pytest.mark.parametrize(("dtype", "most"), [(dtypes.bfloat16, 2**-8), (dtypes.float16, 2**-9)])
@pytest.mark.parametrize(("columns", "n"), [(32, 64), (33, 96)])
def test_weights_of_halves(dtype: DType, most: float, columns: int, n: int) -> None:
    weight, x = Tensor(rows(columns, n)).cast(dtype).realize(), rows(MANY_ROWS + 3, n)
    want = x.astype(np.float64) @ weight.float().numpy().astype(np.float64).T
    found = float_linear(Tensor(x), weight)
    assert found is not None
    assert error(found, want) < most


@pytest.mark.parametrize(("columns", "n"), [(32, 64), (33, 96)])
def test_halves_of_another_type_keep_all_bits(columns: int, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """float16 where only bfloat16 is multiplied: what is left out is 2**-16 of each value."""
    only = float_unit("LLVM", dtypes.bfloat16)
    monkeypatch.setattr(matrix_unit, "float_unit", lambda device, *kinds: None if dtypes.float16 in kinds else only)
    values = rows(columns, n).astype(np.float16)
    values[0, :3] = 2**-24, 65504, -(2**-24)
    x = rows(MANY_ROWS, n) * np.float32(1e3)
    weight, want = Tensor(values), x.astype(np.float64) @ values.astype(np.float64).T
    found = jit(lambda x: float_linear(x, weight))
    for _ in range(3):
        got = found(Tensor(x))
        assert got is not None
        assert error(got, want) < 2**-16


@pytest.mark.parametrize("scale", [1e-30, 1e-7, 1.0, 1e9, 1e30])
def test_rows_of_any_size(scale: float) -> None:
    """Named regression: small rows were 0 as float16, and large ones infinite."""
    weight, x = Tensor(rows(32, 64)).cast(dtypes.float16).realize(), rows(MANY_ROWS, 64)
    x[2] *= np.float32(scale)
    x[4] = 0
    want = x.astype(np.float64) @ weight.numpy().astype(np.float64).T
    found = float_linear(Tensor(x), weight)
    assert found is not None
    for n in (2, 3):
        assert error(found[n], want[n]) < 2**-9
    assert found[4].tolist() == [0] * 32


@pytest.mark.parametrize("is_exact", [False, True])
def test_infinities_in_rows_of_halves(is_exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named regression: upper bits of infinity less infinity."""
    only = float_unit("LLVM", dtypes.bfloat16)
    monkeypatch.setattr(matrix_unit, "float_unit", lambda device, *kinds: None if dtypes.float16 in kinds else only)
    values, x = rows(32, 64).astype(np.float16), rows(MANY_ROWS, 64)
    values = np.sign(values) if is_exact else values
    x[2, 5], x[3, 6], x[4, 7] = np.inf, -np.inf, np.nan
    found = float_linear(Tensor(x), Tensor(values))
    assert found is not None
    got = found.numpy()
    np.testing.assert_array_equal(got[2], np.inf * np.sign(values[:, 5]))
    np.testing.assert_array_equal(got[3], -np.inf * np.sign(values[:, 6]))
    assert np.isnan(got[4]).all()
    assert np.isfinite(np.delete(got, (2, 3, 4), 0)).all()


def test_what_is_not_for_the_unit() -> None:
    x, weight = Tensor(rows(MANY_ROWS, 64)), Tensor(rows(32, 64)).cast(dtypes.bfloat16)
    assert float_linear(x, weight) is not None
    assert float_linear(x, weight.float()) is None
    assert float_linear(x[:8], weight) is None
    assert float_linear(x[:, :40], weight[:, :40]) is None
    assert float_linear(x.double(), weight) is None
    assert float_linear(x.half(), weight) is None
    assert float_linear(x[:, :0], weight[:, :0]) is None
    with Context(QUANT_ACT="float"):
        assert float_linear(x, weight) is None
    with Context(TARGET="avx2"):
        assert float_linear(x, weight) is None
    for one, other in ((x, weight), (x.detach(), weight.clone())):
        one.requires_grad = one is x
        other.requires_grad = one is not x
        assert float_linear(one, other) is None
