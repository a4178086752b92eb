"""Matrices of floats whose rows lie side by side: the same values, and products as near as float32 sums are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import Context, DType, GradientError, ShapeError, Tensor, Variable, dtypes, no_grad
from kernmill.quant import FloatMatrix, float_unit, interleave, prefers_interleaved_rows
from kernmill.runtime import WeightArena, get_device
from tests.kernmill.against import only_on

Array = np.ndarray[Any, Any]
KINDS = [dtypes.float16, dtypes.bfloat16, dtypes.float32]
SHAPES = [(16, 8), (33, 7), (5, 100), (48, 96), (1, 3), (100, 1)]

on_device = only_on("LLVM")


def values(rows: int, n: int) -> Array:
    return np.random.default_rng(rows).standard_normal((rows, n)).astype(np.float32)


def has_pairs() -> bool:
    return (dtypes.bfloat16, dtypes.bfloat16) in get_device("LLVM").target.dots


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("target", ["", "avx2"])
def test_products_and_rows(kind: DType, shape: tuple[int, int], target: str) -> None:
    with Context(TARGET=target, QUANT_ACT="float"):
        plain = Tensor(values(*shape)).cast(kind).realize()
        matrix, want = FloatMatrix.of(plain), plain.float().numpy()
        for count in (1, 2, 5, 70):
            x = values(count, shape[1])
            got = matrix.linear(Tensor(x))
            assert got.dtype is dtypes.float32
            np.testing.assert_allclose(got.numpy(), x @ want.T, rtol=0, atol=1e-4)
        index = np.random.default_rng(0).integers(0, shape[0], (3, 2))
        np.testing.assert_array_equal(matrix.rows(Tensor(index)).numpy(), want[index])


@pytest.mark.parametrize("count", [1, 15, 16, 65])
def test_weights_of_bfloat16_by_pairs(count: int) -> None:
    """Where the CPU is quick with them, and x may be rounded as the weight is."""
    x = values(count, 96)
    with Context(TARGET=""):
        plain = Tensor(values(33, 96)).cast(dtypes.bfloat16).realize()
        matrix, want = FloatMatrix.of(plain), x.astype(np.float64) @ plain.float().numpy().astype(np.float64).T
        assert matrix.data.shape == ((3, 48, 16, 2) if has_pairs() else (3, 96, 16, 1))
        got = matrix.linear(Tensor(x)).numpy()
        error = np.linalg.norm(got - want) / np.linalg.norm(want)
        assert error < 2**-8
        assert bool(error > 2**-16) is (has_pairs() and count >= 16)


def test_leading_axes_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interleave, "_PIECE", 16 * 24)  # a group at a time
    plain, x = values(50, 24), values(6, 24).reshape(2, 3, 24)
    matrix = FloatMatrix.of(Tensor(plain))
    np.testing.assert_allclose(matrix.linear(Tensor(x)).numpy(), x @ plain.T, rtol=0, atol=1e-5)
    assert (matrix.shape, matrix.nbytes) == ((50, 24), 64 * 24 * 4)
    assert repr(matrix) == "<FloatMatrix (50, 24) float32 on LLVM>"


def test_it_lies_in_an_arena() -> None:
    plain = Tensor(values(32, 24)).realize()
    arena = WeightArena("LLVM", [32 * 24 * 4])
    matrix = FloatMatrix.of(plain, arena)
    arena.close()
    (buffer,) = (node.storage for node in matrix.data.uop.toposort() if node.storage is not None)
    assert buffer.whole is not buffer
    np.testing.assert_array_equal(matrix.rows(Tensor([3])).numpy(), plain.numpy()[[3]])


def test_on_every_device(device: str) -> None:
    with Context(DEVICE=device):
        plain, x = values(20, 12), values(3, 12)
        matrix = FloatMatrix.of(Tensor(plain).cast(dtypes.float16))
        want = x @ plain.astype(np.float16).astype(np.float32).T
        np.testing.assert_allclose(matrix.linear(Tensor(x)).numpy(), want, rtol=0, atol=1e-4)


def test_who_reads_faster_so() -> None:
    with Context(TARGET=""):
        is_fast = float_unit("LLVM") is None
        assert [prefers_interleaved_rows(kind, "LLVM") for kind in KINDS] == [is_fast] * 3
        assert not prefers_interleaved_rows(dtypes.float64, "LLVM")
        assert not prefers_interleaved_rows(dtypes.int32, "LLVM")
        assert not prefers_interleaved_rows(None, "LLVM")
    with Context(TARGET="amx"):
        assert not prefers_interleaved_rows(dtypes.float16, "LLVM")
    assert not prefers_interleaved_rows(dtypes.float16, "PYTHON")


def test_x_of_another_width() -> None:
    with pytest.raises(ShapeError) as caught:
        FloatMatrix.of(Tensor(values(16, 8))).linear(Tensor(values(2, 9)))
    assert str(caught.value) == (
        "linear: x of shape (2, 9) with a matrix of shape (16, 8): the last axes must be equal. Reshape one."
    )


def test_what_is_no_matrix() -> None:
    """Once said by Python: too many values to unpack."""
    with pytest.raises(ShapeError) as caught:
        FloatMatrix.of(Tensor(values(4, 6)).reshape(4, 2, 3))
    assert str(caught.value) == (
        "FloatMatrix: shape (4, 2, 3) is neither a matrix nor a stack of them. Give a tensor of two axes, or of three "
        "with a multiple of 16 rows."
    )


def test_a_matrix_that_leads_to_a_gradient() -> None:
    """Once no gradient came of a leaf, without a word; of what was computed, a sentence about the arguments of jit."""
    leaf = Tensor(values(32, 8), requires_grad=True)
    for matrix in (leaf, leaf * 2):
        with pytest.raises(GradientError) as caught:
            FloatMatrix.of(matrix)
        assert str(caught.value) == (
            "FloatMatrix.of: a matrix of shape (32, 8) with requires_grad: the values are copied, and no gradient "
            "flows back. Pass .detach()."
        )
        with no_grad():
            laid = FloatMatrix.of(matrix)
        np.testing.assert_array_equal(laid.data.numpy(), FloatMatrix.of(matrix.detach()).data.numpy())
        assert not laid.data.requires_grad


def test_odd_sizes_of_x_and_of_places() -> None:
    plain = values(33, 8)
    matrix = FloatMatrix.of(Tensor(plain))
    assert matrix.rows(Tensor(np.zeros((2, 0), np.int32))).shape == (2, 0, 8)
    np.testing.assert_array_equal(matrix.rows(Tensor([-1, -33])).numpy(), plain[[-1, -33]])
    assert matrix.linear(Tensor(np.zeros((0, 8), np.float32))).shape == (0, 33)
    assert matrix.linear(Tensor(plain[0])).shape == (33,)
    assert matrix.linear(Tensor(plain.astype(np.float64))).dtype is dtypes.float64
    count = Variable("count", 1, 33).bind(7)
    rows = Tensor(plain).realize()[:count]
    np.testing.assert_allclose(matrix.linear(rows).numpy(), plain[:7] @ plain.T, rtol=0, atol=1e-5)
