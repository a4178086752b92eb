"""Eigenvalues and singular values against NumPy; gradients against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import SettingError, Tensor
from tests.kernmill.against import only_on, with_torch

from .test_factors import NARROW, SHAPES, TALL, WIDE, error, matrices

on_device = only_on("LLVM")


@pytest.mark.parametrize(("shape", "dtype"), [*((s, np.float64) for s in SHAPES), *NARROW], ids=str)
def test_eigenvectors_diagonalize(shape: tuple[int, ...], dtype: Any) -> None:
    a = matrices(*shape, dtype=dtype)
    a = a + a.swapaxes(-1, -2)
    for side, triangle in (("L", np.tril(a)), ("U", np.triu(a))):
        values, vectors = (t.numpy() for t in Tensor(triangle).eigh(side))
        assert error(vectors * values[..., None, :] @ vectors.swapaxes(-1, -2), a) < 30
        assert error(values, np.linalg.eigvalsh(a)) < 30


@pytest.mark.parametrize(("shape", "dtype"), [*((s, np.float64) for s in (*SHAPES, *TALL)), *NARROW, *WIDE], ids=str)
def test_singular_values_and_vectors(shape: tuple[int, ...], dtype: Any) -> None:
    a = matrices(*shape, dtype=dtype)
    for full in (False, True):
        u, s, vh = (t.numpy() for t in Tensor(a).svd(full))
        k = s.shape[-1]
        assert [t.shape for t in (u, s, vh)] == [t.shape for t in np.linalg.svd(a, full)]
        assert error(u[..., :k] * s[..., None, :] @ vh[..., :k, :], a) < 30
        for basis in (u.swapaxes(-1, -2) @ u, vh @ vh.swapaxes(-1, -2)):
            assert error(basis, np.broadcast_to(np.eye(basis.shape[-1], dtype=dtype), basis.shape)) < 30
        assert error(s, np.linalg.svd(a)[1]) < 30


def test_deficient_ranks() -> None:
    a = matrices(6, 3, seed=1) @ matrices(3, 5, seed=2)
    a[:, 1] = 0
    for x in (a, a.T, np.zeros((4, 3)), np.stack([a] * 9)):
        u = Tensor(x).svd().U.numpy()
        assert error(u.swapaxes(-1, -2) @ u, np.broadcast_to(np.eye(u.shape[-1]), u.shape)) < 30
        np.testing.assert_array_equal(Tensor(x).matrix_rank().numpy(), np.linalg.matrix_rank(x))
        np.testing.assert_allclose(Tensor(x).pinv().numpy(), np.linalg.pinv(x), atol=1e-12)
    b = matrices(6, 2, seed=3)
    np.testing.assert_allclose(Tensor(a).lstsq(Tensor(b)).numpy(), np.linalg.lstsq(a, b)[0], atol=1e-12)
    assert Tensor(a).matrix_rank(1e9).item() == 0


@pytest.mark.parametrize("shape", [(3, 3), pytest.param((9, 3, 3), marks=pytest.mark.slow)], ids=str)
def test_gradients_are_torchs(shape: tuple[int, ...]) -> None:
    linalg: Any = pytest.importorskip("torch").linalg
    a = matrices(*shape, seed=4)
    with_torch(lambda x: (x + x.mT).eigvalsh(), lambda x: linalg.eigvalsh(x + x.mT), [a], 1e-6)
    with_torch(lambda x: (x + x.mT).eigh()[1].square(), lambda x: linalg.eigh(x + x.mT)[1].square(), [a], 1e-6)
    with_torch(lambda x: x.matrix_exp(), linalg.matrix_exp, [a], 1e-6)
    for columns in (2, 3, 5):
        c = matrices(*shape[:-1], columns, seed=5)
        with_torch(lambda x: x.svdvals(), linalg.svdvals, [c], 1e-6)
        with_torch(lambda x: x.pinv(), linalg.pinv, [c], 1e-6)
        for n in (0, 2):
            with_torch(lambda x, n=n: x.svd(False)[n].square(),
                       lambda x, n=n: linalg.svd(x, full_matrices=False)[n].square(), [c], 1e-6)  # fmt: skip


def test_large_matrices_have_exponentials() -> None:
    a = np.array([[0.0, 300.0], [-300.0, 0.0]])
    wanted = [[np.cos(300), np.sin(300)], [-np.sin(300), np.cos(300)]]
    np.testing.assert_allclose(Tensor(a).matrix_exp().numpy(), wanted, atol=1e-9)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("n", [1, 3, 40])
def test_eigenvalues_of_what_is_not_finite_are_nan(n: int, value: float) -> None:
    """n=3 had two finite eigenvalues. The triangle that is not read may have anything."""
    x = np.stack([np.eye(n)] * 3)
    x[1, n - 1, 0] = value
    x[2, 0, n - 1] = value if n > 1 else 1.0
    values, vectors = (t.numpy() for t in Tensor(x).eigh())
    assert np.isnan(values[1]).all()
    assert np.isnan(vectors[1]).all()
    np.testing.assert_array_equal(values[[0, 2]], np.ones((2, n)))


def test_another_triangle_is_an_error() -> None:
    with pytest.raises(SettingError, match=r"^eigh: UPLO='X': must be 'L' or 'U'\.$"):
        Tensor(np.eye(2)).eigh("X")


@pytest.mark.parametrize(("n", "scale"), [(4, 1e30), (40, 1e-30)])
def test_squares_of_singular_values_may_overflow(n: int, scale: float) -> None:
    """Named regression: in float32 they were off by a quarter, and for n = 200 by a hundred roundings at any scale."""
    x = (np.random.default_rng(n).standard_normal((n, n)) * scale).astype(np.float32)
    u, s, vh = (part.numpy().astype(float) for part in Tensor(x).svd())
    eps = float(np.finfo(np.float32).eps)
    assert abs(s - np.linalg.svd(x.astype(float))[1]).max() < 10 * eps * s[0]
    assert abs((u * s) @ vh - x).max() < 10 * eps * s[0]
    assert abs(vh @ vh.T - np.eye(n)).max() < 20 * eps
