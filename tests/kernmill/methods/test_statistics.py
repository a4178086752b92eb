"""Distinct values, histograms, covariance against NumPy; sizes inside of captured functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import Context, SettingError, ShapeError, Tensor, jit
from tests.kernmill.against import close, only_on, same, values

on_device = only_on("LLVM")
WHOLE = np.random.default_rng(3).integers(0, 5, (4, 6))
X = values(3, 10)


def test_distinct_values() -> None:
    same(Tensor(WHOLE).unique(), np.unique(WHOLE))
    ours = Tensor(WHOLE).unique(True, True, True)
    for own, theirs in zip(ours, np.unique(WHOLE, True, True, True), strict=True):
        same(own, theirs)
    nan = np.array([1, np.nan, 2, np.nan, 1.0])
    for equal in (True, False):
        same(Tensor(nan).unique(equal_nan=equal), np.unique(nan, equal_nan=equal))
    assert [t.shape for t in Tensor(np.zeros((0, 2))).unique(True, True, True)] == [(0,), (0,), (0, 2), (0,)]
    same(Tensor(3).unique(), np.array([3]))


def test_distinct_values_in_a_captured_function() -> None:
    f = jit(lambda t: t.unique(return_counts=True, return_inverse=True, size=6))
    for start in (0, 1, 2):
        found, inverse, counts = f(Tensor(WHOLE + start))
        want = np.unique(WHOLE + start)
        np.testing.assert_array_equal(found.numpy()[: len(want)], want)
        np.testing.assert_array_equal(found.numpy()[inverse.numpy()], WHOLE + start)
        assert counts.tolist() == [*np.unique(WHOLE, return_counts=True)[1], *[0] * (6 - len(want))]


def test_masks_are_computed_outside_of_captured_functions() -> None:
    t, mask = Tensor(WHOLE), Tensor(WHOLE) > 2
    same(t[mask], WHOLE[WHOLE > 2])
    same(mask.nonzero(), np.argwhere(WHOLE > 2))
    same(t.nonzero(), np.argwhere(WHOLE))
    same(t.masked_select(mask), WHOLE[WHOLE > 2])
    same(t[mask[:, 0], 1:3], WHOLE[WHOLE[:, 0] > 2, 1:3])
    new = WHOLE.copy()
    new[WHOLE > 2] = np.arange((WHOLE > 2).sum())
    t[mask] = Tensor(np.arange((WHOLE > 2).sum()))
    same(t, new)
    x = Tensor(X, requires_grad=True)
    x[x > 0].sum().backward()
    assert x.grad is not None
    same(x.grad, (X > 0).astype(np.float32))


@pytest.mark.parametrize("call", [lambda t: t.nonzero(), lambda t: t[t > 1], lambda t: t.unique()])
def test_a_captured_function_needs_sizes(call: Any) -> None:
    f = jit(call)
    f(Tensor(WHOLE))
    with pytest.raises(ShapeError, match="the shape of the result depends on the data"):
        f(Tensor(WHOLE))


@pytest.mark.parametrize("options", [{}, {"bins": 4}, {"bins": 5, "range": (-1.0, 1.0)}, {"bins": 3, "density": True}])
def test_histograms(options: Any) -> None:
    own, theirs = Tensor(X).histogram(**options), np.histogram(X, **options)
    close(own[0], theirs[0])
    close(own[1], theirs[1])


def test_histograms_with_edges_and_weights() -> None:
    edges = np.array([-1, 0, 0.5, 2.0], np.float32)
    close(Tensor(X).histogram(Tensor(edges))[0], np.histogram(X, edges)[0])
    close(Tensor(X).histogram(4, weight=Tensor(X))[0], np.histogram(X, 4, weights=X)[0], 1e-5, 1e-5)
    same(Tensor(np.ones(0, np.float32)).histogram(2)[0], np.array([0, 0]))
    same(Tensor([2.0, 2.0]).histogram(2)[0], np.histogram([2.0, 2.0], 2)[0])


def test_covariance_and_means_of_segments() -> None:
    x = X.astype(np.float64)
    close(Tensor(x).cov(), np.cov(x))
    close(Tensor(x).cov(correction=0), np.cov(x, ddof=0))
    close(Tensor(x[0]).cov(), np.cov(x[0]))
    close(Tensor(x).corrcoef(), np.corrcoef(x))
    index = np.array([0, 0, 2])
    close(Tensor(x).segment_mean(Tensor(index), 3), np.stack([x[:2].mean(0), x[0] * np.nan, x[2]]))
    same(Tensor(x).bucketize(Tensor([-1.0, 0.0, 1.0]).double()), np.searchsorted([-1, 0, 1], x))


def test_every_device(device: str) -> None:
    with Context(DEVICE=device):
        if not device.startswith("NULL"):
            same(Tensor(WHOLE).unique(), np.unique(WHOLE))
            close(Tensor(X).histogram(4)[0], np.histogram(X, 4)[0])


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: Tensor(WHOLE).unique(size=0), ShapeError, "unique: size=0 of 24 elements"),
        (lambda: Tensor(X).histogram(0), SettingError, "must be 1 or more, and finite"),
        (lambda: Tensor(X).histogram(3, (2.0, 1.0)), SettingError, "must be 1 or more, and finite"),
        (lambda: Tensor(X).histogram(Tensor(1.0)), ShapeError, "must be a vector of 2 or more"),
        (lambda: Tensor(X).histogram(3, weight=Tensor.ones(2)), ShapeError, "must be equal"),
        (lambda: Tensor.ones(2, 2, 2).cov(), ShapeError, "must be a matrix of variables by observations"),
    ],
)
def test_bad_calls(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()
