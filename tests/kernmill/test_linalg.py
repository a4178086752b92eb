"""The functions of kernmill.linalg against numpy.linalg."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest

import kernmill
from kernmill import DTypeError, GradientError, KernmillError, SettingError, ShapeError, Tensor, linalg
from tests.kernmill.against import only_on

on_device = only_on("LLVM")
ANY: Any = [1.0, 2.0]
A = np.random.default_rng(0).standard_normal((4, 4))
B = np.random.default_rng(1).standard_normal((3, 4, 5))


def same(x: Any, y: Any) -> None:
    np.testing.assert_allclose(x.numpy(), y, rtol=1e-9, atol=1e-11)


def test_functions_are_numpys() -> None:
    x = Tensor(A)
    for name in ("inv", "pinv", "det", "svdvals", "eigvalsh", "matrix_rank", "cond"):
        symmetric = A + A.T
        same(getattr(linalg, name)(Tensor(symmetric)), getattr(np.linalg, name)(symmetric))
    same(linalg.matrix_power(x, -2), np.linalg.matrix_power(A, -2))
    same(linalg.multi_dot([x, x, Tensor(B[0]), Tensor(B[0, 0])]), np.linalg.multi_dot([A, A, B[0], B[0, 0]]))
    same(linalg.trace(Tensor(B)), np.trace(B, axis1=-2, axis2=-1))
    same(linalg.vecdot(x, x), (A * A).sum(-1))
    same(linalg.solve(x, Tensor(A[0])), np.linalg.solve(A, A[0]))
    for p in (1, -1, 2, -2, math.inf, -math.inf, "fro", "nuc"):
        same(linalg.cond(x, p), np.linalg.cond(A, p))
    a, b = A[:, :2], B[0]
    ours, theirs = linalg.lstsq(Tensor(a), Tensor(b)), np.linalg.lstsq(a, b)
    for left, right in zip(ours, theirs, strict=True):
        same(left, right)


def test_norms_are_numpys() -> None:
    x = Tensor(B)
    for order in (1, -1, 2, -2, math.inf, -math.inf, "fro", "nuc"):
        for axis in ((0, 1), (1, 2), (2, 0), (-1, -3)):
            for keep in (False, True):
                same(linalg.norm(x, order, axis, keep), np.linalg.norm(B, order, axis, keep))
    for order in (0, 1, 2, 3.5, math.inf, -math.inf, -1):
        same(linalg.norm(x, order, 1), np.linalg.norm(B, order, 1))
        same(linalg.norm(Tensor(B[0, 0]), order), np.linalg.norm(B[0, 0], order))
    same(linalg.norm(x), np.linalg.norm(B))
    same(linalg.norm(Tensor(A), 1), np.linalg.norm(A, 1))


def test_wrong_orders_are_errors() -> None:
    with pytest.raises(SettingError, match=r"^matrix_norm: ord=3: must be"):
        linalg.norm(Tensor(A), 3)
    with pytest.raises(ShapeError, match=r"^norm: ord=2 of shape"):
        linalg.norm(Tensor(B), 2)
    with pytest.raises(ShapeError, match=r"^multi_dot: 1 tensors"):
        linalg.multi_dot([Tensor(A)])
    with pytest.raises(DTypeError, match=r"^linalg\.norm: list is not a tensor\. Give Tensor\(\.\.\)\.$"):
        linalg.norm(ANY)
    assert kernmill.linalg is linalg


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_eigenvalues_of_matrices_that_are_not_symmetric(dtype: type) -> None:
    array: Any = np.random.default_rng(3).standard_normal((2, 5, 5)).astype(dtype)
    found = linalg.eig(Tensor(array))
    values, vectors = found.eigenvalues.numpy(), found.eigenvectors.numpy()
    assert values.dtype == vectors.dtype == (np.complex64 if dtype is np.float32 else np.complex128)
    bound = 1e-4 if dtype is np.float32 else 1e-12
    assert np.abs(array @ vectors - vectors * values[:, None]).max() < bound
    assert np.abs(np.linalg.norm(vectors, axis=-2) - 1).max() < bound
    np.testing.assert_array_equal(linalg.eigvals(Tensor(array)).numpy(), values)
    real = linalg.eigvals(Tensor(np.array([[2.0, 1.0], [0.0, 3.0]]))).real.numpy()
    assert sorted(real.tolist()) == [2.0, 3.0]
    assert linalg.eigvals(Tensor.zeros(0, 3, 3)).shape == (0, 3)


def test_what_eig_refuses() -> None:
    with pytest.raises(ShapeError, match=r"linalg.eig: \(2, 3\) is not a square matrix"):
        linalg.eig(Tensor.ones(2, 3))
    with pytest.raises(GradientError, match="it has no gradient"):
        linalg.eigvals(Tensor.ones(2, 2, requires_grad=True))
    with pytest.raises(linalg.LinAlgError, match=r"linalg\.eig: "):
        linalg.eig(Tensor([[math.nan, 1.0], [0.0, 1.0]]))
    step, x = kernmill.jit(lambda x: linalg.eigvals(x).real), Tensor.ones(2, 2).contiguous().realize()
    step(x)  # plainly
    with pytest.raises(KernmillError, match="jit"):
        step(x)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (2, 3, 0)])
def test_factors_of_empty_matrices(shape: tuple[int, ...]) -> None:  # named regression: division by zero
    x = np.zeros(shape)
    for mode in ("reduced", "complete"):
        for ours, theirs in zip(linalg.qr(Tensor(x), mode), np.linalg.qr(x, mode), strict=True):
            same(ours, theirs)
    for is_full in (True, False):
        for ours, theirs in zip(linalg.svd(Tensor(x), is_full), np.linalg.svd(x, is_full), strict=True):
            same(ours, theirs)
    same(linalg.pinv(Tensor(x)), np.linalg.pinv(x))


def test_a_singular_matrix_raises_numpys_error() -> None:
    with pytest.raises(np.linalg.LinAlgError, match="singular") as caught:
        linalg.inv(Tensor(np.zeros((2, 2)))).numpy()
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, linalg.LinAlgError)
    assert isinstance(again, np.linalg.LinAlgError)
