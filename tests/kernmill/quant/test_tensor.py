"""QuantizedTensor: shapes, what it computes, and what it says of mistakes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kernmill import Context, DTypeError, ShapeError, Tensor, dtypes, jit
from kernmill.quant import QuantizedTensor, block_type, interleave, interleaved_bytes
from kernmill.runtime import host

X = np.random.default_rng(4).standard_normal((3, 2, 64)).astype(np.float32)


def test_there_and_back() -> None:
    weight = QuantizedTensor.quantize(Tensor(X), "Q8_0")
    assert (weight.shape, weight.ndim, weight.nbytes) == ((3, 2, 64), 3, 3 * 2 * 2 * 34)
    assert weight.data.shape == (3, 2, 2, 34)
    assert repr(weight).startswith("<QuantizedTensor (3, 2, 64) Q8_0 on ")
    assert repr(weight).endswith("not realized>")
    assert "not realized" not in repr(weight.realize())
    values = weight.dequantize()
    assert (values.shape, values.dtype) == (X.shape, dtypes.float32)
    np.testing.assert_allclose(values.numpy(), X, atol=0.02)
    again = QuantizedTensor(weight.data.flatten(), block_type("Q8_0"), X.shape)
    np.testing.assert_array_equal(again.dequantize().numpy(), values.numpy())


@pytest.mark.parametrize("name", ["Q4_0", "Q5_1", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "IQ4_XS", "MXFP4", "TQ2_0"])
def test_linear(name: str) -> None:
    """As the product of the values, in whatever order the sums are taken."""
    width = block_type(name).values * 2
    rng = np.random.default_rng(width)
    weight = QuantizedTensor.quantize(Tensor(rng.standard_normal((3, width)).astype(np.float32)), name).realize()
    values, x = weight.dequantize().numpy(), rng.standard_normal((2, 1, width)).astype(np.float32)
    with Context(QUANT_ACT="float"):
        np.testing.assert_allclose(weight.linear(Tensor(x)).numpy(), x @ values.T, rtol=1e-4, atol=1e-4)
        bias = Tensor([1.0, 2.0, 3.0])
        got = weight.linear(Tensor(x[0, 0]), bias).numpy()
    np.testing.assert_allclose(got, x[0, 0] @ values.T + bias.numpy(), rtol=1e-4, atol=1e-4)


def test_rows() -> None:
    weight = QuantizedTensor.quantize(Tensor(X), "Q4_1")
    picked = weight.rows(Tensor([[2, 0], [1, 1]]))
    assert (picked.shape, picked.dtype) == ((2, 2, 2, 64), dtypes.float32)
    np.testing.assert_array_equal(picked.numpy(), weight.dequantize().numpy()[[[2, 0], [1, 1]]])


def test_a_product_inside_jit() -> None:
    weight = QuantizedTensor.quantize(Tensor(X[:, 0]), "Q5_0").realize()

    @jit
    def product(x: Tensor) -> Tensor:
        return (x @ weight.dequantize().T).realize()

    for seed in range(4):
        x = np.random.default_rng(seed).standard_normal((2, 64)).astype(np.float32)
        np.testing.assert_allclose(product(Tensor(x)).numpy(), x @ weight.dequantize().numpy().T, rtol=1e-4, atol=1e-4)


def test_to_another_device() -> None:
    weight = QuantizedTensor.quantize(Tensor(X), "Q4_0").to("PYTHON")
    assert (weight.device, weight.dequantize().device) == ("PYTHON", "PYTHON")


def test_no_values() -> None:
    weight = QuantizedTensor.quantize(Tensor.zeros(0, 32), "Q4_0")
    assert weight.dequantize().numpy().shape == (0, 32)


def test_mistakes() -> None:
    weight = QuantizedTensor.quantize(Tensor.zeros(3, 64), "Q4_0")
    with pytest.raises(ShapeError, match=r"linear: x of shape \(2, 32\) with Q4_0 of shape \(3, 64\): the weight must"):
        weight.linear(Tensor.zeros(2, 32))
    data = Tensor.zeros(36, dtype=dtypes.uint8)
    with pytest.raises(ShapeError, match=r"QuantizedTensor: Q4_0 of shape \(2, 33\): rows of 33 values are not"):
        QuantizedTensor(data, "Q4_0", (2, 33))
    with pytest.raises(ShapeError, match=r"QuantizedTensor: Q4_0 of shape \(\): rows of 1 values"):
        QuantizedTensor(data, "Q4_0", ())
    with pytest.raises(ShapeError, match=r"QuantizedTensor: 36 bytes for Q4_0 of shape \(3, 32\), which needs 54\."):
        QuantizedTensor(data, "Q4_0", (3, 32))
    with pytest.raises(DTypeError, match=r"QuantizedTensor: Q4_0 blocks of float32\. Give bytes, as uint8\."):
        QuantizedTensor(data.float(), "Q4_0", (2, 32))
    with pytest.raises(ShapeError, match=r"quantize: a tensor of shape \(2, 33\) as Q4_0: its rows are not a multiple"):
        QuantizedTensor.quantize(Tensor.zeros(2, 33), "Q4_0")


@pytest.mark.parametrize("rows", [1, 16, 37])
@pytest.mark.parametrize("form", ["fast", "small"])
@pytest.mark.parametrize("name", ["Q4_0", "Q6_K", "IQ4_XS", "IQ1_S"])
def test_what_interleaved_rows_take_is_known_before(name: str, rows: int, form: str) -> None:
    kind = block_type(name)
    if name == "IQ1_S":
        pytest.importorskip("gguf")
    data = Tensor(np.zeros((rows, 2 * kind.size_bytes), np.uint8))
    weight = QuantizedTensor(data, name, (rows, 2 * kind.values))
    with Context(QUANT_FORM=form):
        assert weight.interleaved().nbytes == interleaved_bytes(kind.type, weight.shape)


@pytest.mark.parametrize("rows", [32, 80, 91])
def test_rows_are_laid_side_by_side_piece_by_piece(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one capture for all whole pieces, the last of which begins earlier."""
    x = Tensor(np.random.default_rng(rows).standard_normal((rows, 256), np.float32))
    weight = QuantizedTensor.quantize(x, "Q4_K").realize()
    want = weight.interleaved().data.numpy()
    monkeypatch.setattr(interleave, "_PIECE", 2 * 16 * 256)
    np.testing.assert_array_equal(weight.interleaved().data.numpy(), want)
    np.testing.assert_array_equal(weight.interleaved().dequantize().numpy(), weight.dequantize().numpy())


def test_rows_that_fill_no_group_on_a_cpu_without_avx512(device: str, tmp_path: Path) -> None:
    """Named regression: LLVM's pass for interleaved stores took a value for a shuffle, and the process was aborted."""
    if device != "LLVM" or not host.this_host().has("avx2"):
        pytest.skip("kernels of an x86 CPU with AVX2")
    code = """
import numpy as np
from kernmill import Tensor
from kernmill.quant import QuantizedTensor
x = Tensor(np.random.default_rng(5).standard_normal((5, 512), np.float32))
for name in ("Q5_0", "Q5_1", "TQ1_0"):
    weight = QuantizedTensor.quantize(x, name).realize()
    np.testing.assert_array_equal(weight.interleaved().dequantize().numpy(), weight.dequantize().numpy())
"""
    settings = {"TARGET": "avx2", "DEVICE": "LLVM", "CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **settings}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_may_interleave_matrices_of_any_number_of_shapes(caplog: pytest.LogCaptureFixture) -> None:
    """Seventeen shapes were told of as calls of `partial`, by a capture of which the user knows nothing."""
    for groups in range(1, 19):
        QuantizedTensor.quantize(Tensor.ones(16 * groups, 32), "Q4_1").interleaved()
    assert not caplog.records
