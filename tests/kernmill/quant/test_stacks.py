"""Stacks of matrices: rows with the matrix of their tile, as experts take them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import Context, ShapeError, Tensor, dtypes
from kernmill.ir import Ops
from kernmill.quant import FloatMatrix, QuantizedTensor
from kernmill.quant.product import adds_bytes

chance = np.random.default_rng(0)
VALUES = chance.standard_normal((5, 32, 256)).astype(np.float32)
X = chance.standard_normal((4, 3, 256)).astype(np.float32)
IDS = np.array([4, 0, 4, 2])


def expected(values: Any) -> Any:
    return np.einsum("trn,tmn->trm", X.astype(np.float64), values[IDS])


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q4_K", "Q6_K", "MXFP4", "IQ4_NL"])
@pytest.mark.parametrize("act", ["int8", "float"])
def test_chosen_matrices(kind: str, act: str) -> None:
    """In the layout of a file and interleaved; only rounding of x separates int8 from the values."""
    stack = QuantizedTensor.quantize(Tensor(VALUES), kind).realize()
    values = stack.dequantize().numpy()
    laid = stack.interleaved()
    assert laid.interleave > 1
    np.testing.assert_array_equal(laid.dequantize().numpy(), values)
    with Context(QUANT_ACT=act):
        found = [one.chosen(Tensor(X), Tensor(IDS)).numpy() for one in (stack, laid)]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(found[0], expected(values), atol=0.5 if act == "int8" else 1e-3)


def test_chosen_matrices_of_floats() -> None:
    found = FloatMatrix.of(Tensor(VALUES)).chosen(Tensor(X), Tensor(IDS))
    np.testing.assert_allclose(found.numpy(), expected(VALUES), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K", "Q6_K", "float"])
def test_rows_behind_the_count_of_a_tile_are_zeros(kind: str) -> None:
    """Named regression: tiles of more than two rows copied the matrices of their experts before."""
    x, counts = chance.standard_normal((4, 20, 256)).astype(np.float32), np.array([20, 0, 5, 17])
    values: np.ndarray = VALUES
    stack: FloatMatrix | QuantizedTensor = FloatMatrix.of(Tensor(VALUES))
    if kind != "float":
        blocks = QuantizedTensor.quantize(Tensor(VALUES), kind).interleaved()
        values, stack = blocks.dequantize().numpy(), blocks
    given = Tensor(x).realize(), Tensor(IDS).realize(), Tensor(counts).realize()
    found = stack.chosen(*given).numpy()
    is_in = np.arange(20)[None] < counts[:, None]
    wanted = np.einsum("trn,tmn->trm", x.astype(np.float64), values[IDS]) * is_in[..., None]
    np.testing.assert_allclose(found, wanted, atol=0.5 if kind != "float" else 1e-3)
    assert not found[~is_in].any()
    if kind != "float" and adds_bytes(stack.device):
        parts = stack.chosen(*given).uop.toposort()
        assert not any(node.op is Ops.CONTIGUOUS and node.dtype is dtypes.uint8 for node in parts)


def test_chosen_matrices_on_opencl(opencl: str) -> None:
    with Context(DEVICE=opencl):
        stack = QuantizedTensor.quantize(Tensor(VALUES), "Q4_0").realize()
        found = stack.interleaved().chosen(Tensor(X), Tensor(IDS)).numpy()
        np.testing.assert_allclose(found, expected(stack.dequantize().numpy()), atol=0.5)


def test_a_stack_without_whole_groups_is_not_interleaved() -> None:
    stack = QuantizedTensor.quantize(Tensor(VALUES[:, :20]), "Q4_0").realize()
    assert stack.interleaved() is stack


@pytest.mark.parametrize("kind", ["Q4_0", "float"])
def test_axes_that_do_not_fit(kind: str) -> None:
    stack: Any = FloatMatrix.of(Tensor(VALUES))
    own = "a stack of shape (5, 32, 256)"
    if kind == "Q4_0":
        stack, own = QuantizedTensor.quantize(Tensor(VALUES), kind), "Q4_0 of shape (5, 32, 256)"
    with pytest.raises(ShapeError) as caught:
        stack.chosen(Tensor(X), Tensor(IDS[:3]))
    assert str(caught.value) == (
        f"chosen: x of shape (4, 3, 256) and ids of shape (3,) with {own}: they must be (tiles, rows, n), (tiles,) "
        "and (matrices, m, n). Reshape one."
    )
