"""Factorizations against NumPy in float64 and float32, on every device; gradients against PyTorch; bad matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import Context, LinAlgError, ShapeError, Tensor, jit
from tests.kernmill.against import only_on, with_torch

on_device = only_on("LLVM")
SHAPES = [(1, 1), (3, 2, 4, 4), (10, 5, 5), (40, 40)]  # one, a batch, interleaved, with blocks
TALL = [(9, 5, 3)]
NARROW = [((10, 4, 4), np.float32), pytest.param((40, 40), np.float32, marks=pytest.mark.slow)]

WIDE = [pytest.param((34, 45), np.float64, marks=pytest.mark.slow)]


def matrices(*shape: int, seed: int = 0, dtype: Any = np.float64) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def error(x: Any, y: Any) -> float:
    """The largest difference by the largest entry, in units of the dtype's epsilon times the size."""
    scale = max(1.0, float(abs(y).max(initial=0.0)))
    return float(abs(x - y).max(initial=0.0) / (scale * np.finfo(x.dtype).eps * max(1, *y.shape[-2:])))


@pytest.mark.parametrize(("shape", "dtype"), [*((s, np.float64) for s in SHAPES), *NARROW], ids=str)
def test_factors_multiply_to_the_matrix(shape: tuple[int, ...], dtype: Any) -> None:
    a = matrices(*shape, dtype=dtype)
    positive = a @ a.swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1], dtype=dtype)
    lower = Tensor(positive).cholesky().numpy()
    assert error(lower @ lower.swapaxes(-1, -2), positive) < 10
    assert not np.triu(lower, 1).any()
    p, low, u = (t.numpy() for t in Tensor(a).lu())
    assert error(p @ low @ u, a) < 10
    assert np.allclose(np.tril(u, -1), 0)
    b = matrices(*shape[:-1], 3, seed=1, dtype=dtype)
    x = Tensor(positive).solve(Tensor(b)).numpy()
    assert error(positive @ x, b) < 20
    for upper in (False, True):
        t = Tensor(positive).solve_triangular(Tensor(b), upper=upper).numpy()
        assert error((np.triu if upper else np.tril)(positive) @ t, b) < 20
    sign, log = (t.numpy() for t in Tensor(a).slogdet())
    wanted = np.linalg.slogdet(a)
    np.testing.assert_array_equal(sign, wanted[0])
    np.testing.assert_allclose(log, wanted[1], rtol=1e-4 if dtype is np.float32 else 1e-10, atol=1e-4)


@pytest.mark.parametrize(("shape", "dtype"), [*((s, np.float64) for s in (*SHAPES, *TALL)), *NARROW, *WIDE], ids=str)
def test_qr_is_orthogonal_and_multiplies_to_the_matrix(shape: tuple[int, ...], dtype: Any) -> None:
    a = matrices(*shape, dtype=dtype)
    for mode in ("reduced", "complete"):
        q, r = (t.numpy() for t in Tensor(a).qr(mode))
        assert (q.shape, r.shape) == tuple(t.shape for t in np.linalg.qr(a, mode))
        assert error(q @ r, a) < 10
        square = q.swapaxes(-1, -2) @ q
        assert error(square, np.broadcast_to(np.eye(q.shape[-1], dtype=dtype), square.shape)) < 10
        assert not np.tril(r, -1).any()


def test_every_device_has_the_routines(device: str) -> None:
    with Context(DEVICE=device, CHECK=1):
        a = matrices(9, 4, 4, seed=2)
        positive = a @ a.swapaxes(-1, -2) + 4 * np.eye(4)
        b = matrices(9, 4, 2, seed=3)
        if device.startswith("NULL"):
            return
        for one in (slice(None), 0):
            lower = Tensor(positive[one]).cholesky().numpy()
            np.testing.assert_allclose(lower, np.linalg.cholesky(positive[one]), atol=1e-12)
            np.testing.assert_allclose(
                Tensor(a[one]).solve(Tensor(b[one])).numpy(), np.linalg.solve(a[one], b[one]), rtol=1e-8, atol=1e-9
            )
            np.testing.assert_allclose(abs(Tensor(a[one]).qr()[1].numpy()), abs(np.linalg.qr(a[one])[1]), atol=1e-12)
            np.testing.assert_allclose(Tensor(a[one]).svdvals().numpy(), np.linalg.svd(a[one])[1], atol=1e-12)
            values = Tensor(positive[one]).eigvalsh().numpy()
            np.testing.assert_allclose(values, np.linalg.eigvalsh(positive[one]), rtol=1e-12)


@pytest.mark.parametrize("shape", [(3, 3), pytest.param((9, 3, 3), marks=pytest.mark.slow)], ids=str)
def test_gradients_are_torchs(shape: tuple[int, ...]) -> None:
    linalg: Any = pytest.importorskip("torch").linalg
    a, b = matrices(*shape, seed=4), matrices(*shape[:-1], 2, seed=5)
    with_torch(lambda x: (x @ x.mT).cholesky(), lambda x: linalg.cholesky(x @ x.mT), [a], 1e-6)
    with_torch(lambda x, y: x.solve(y), linalg.solve, [a, b], 1e-6)
    with_torch(lambda x: x.inv(), linalg.inv, [a], 1e-6)
    with_torch(lambda x: x.det(), linalg.det, [a], 1e-6)
    with_torch(lambda x: x.slogdet()[1], lambda x: linalg.slogdet(x)[1], [a], 1e-6)
    for upper in (False, True):
        with_torch(lambda x, y, upper=upper: x.solve_triangular(y, upper=upper),
                   lambda x, y, upper=upper: linalg.solve_triangular(x, y, upper=upper), [a, b], 1e-6)  # fmt: skip
    for columns in (2, 3, 5):
        c = matrices(*shape[:-1], columns, seed=6)
        for number in (0, 1):
            with_torch(lambda x, n=number: x.qr()[n].square(), lambda x, n=number: linalg.qr(x)[n].square(), [c], 1e-6)


def test_a_gradient_has_a_gradient() -> None:
    torch: Any = pytest.importorskip("torch")
    a = matrices(3, 3, seed=7)
    x, y = Tensor(a, requires_grad=True), torch.tensor(a, requires_grad=True)
    (first,) = x.inv().sum().gradient(x)
    (second,) = first.square().sum().gradient(x)
    (wanted,) = torch.autograd.grad(torch.linalg.inv(y).sum(), y, create_graph=True)
    (wanted,) = torch.autograd.grad(wanted.square().sum(), y)
    np.testing.assert_allclose(second.numpy(), wanted.numpy(), rtol=1e-8)


def test_singular_matrices_are_errors() -> None:
    ones = np.ones((3, 3))
    with pytest.raises(LinAlgError, match=r"^solve: the matrix is singular\.$"):
        Tensor(ones).inv().numpy()
    with pytest.raises(LinAlgError, match=r"^solve: the matrix is singular\.$"):
        Tensor(np.stack([np.eye(3), ones])).solve(Tensor(np.ones((2, 3, 1)))).numpy()
    with pytest.raises(LinAlgError, match=r"^cholesky: the matrix is not positive definite\.$"):
        Tensor(-np.eye(3)).cholesky().numpy()
    inverse = jit(lambda x: x.inv())
    for _ in range(3):
        inverse(Tensor(np.eye(3)))
    with pytest.raises(LinAlgError):
        inverse(Tensor(ones))
    assert Tensor(ones).det().item() == 0.0
    assert [t.item() for t in Tensor(ones).slogdet()] == [0.0, -np.inf]


def test_shapes_that_do_not_fit_are_errors() -> None:
    x: Any = Tensor(np.ones((2, 3)))
    for call in ("cholesky", "inv", "det", "slogdet", "lu"):
        with pytest.raises(ShapeError, match=rf"^{call}: shape \(2, 3\): must be square in its last two axes\.$"):
            getattr(x, call)()
    with pytest.raises(ShapeError, match=r"^qr: shape \(3,\): needs a matrix, of two axes or more\.$"):
        Tensor(np.ones(3)).qr()
    with pytest.raises(ShapeError, match="the second needs 2 rows"):
        Tensor(np.eye(2)).solve(x.T)


def test_empty_matrices_have_results() -> None:
    for shape in ((0, 0), (0, 3, 3), (2, 0, 0)):
        x = Tensor(np.ones(shape))
        assert x.cholesky().shape == x.inv().shape == shape
        np.testing.assert_array_equal(x.det().numpy(), np.linalg.det(np.ones(shape)))
        assert [t.shape for t in x.qr()] == [t.shape for t in np.linalg.qr(np.ones(shape))]


def test_a_negative_power_is_one_of_the_inverse() -> None:
    a = matrices(4, 4, seed=8)
    np.testing.assert_allclose(Tensor(a).matrix_power(-3).numpy(), np.linalg.matrix_power(a, -3), rtol=1e-6)
