"""Scales of groups: fits find what is there, and are as good as a search."""

from __future__ import annotations

import numpy as np
import pytest

from kernmill import Tensor
from kernmill.quant.fitting import fit_around_zero, fit_from_least, weighed

from . import against


def test_fits_find_what_is_there() -> None:
    codes = np.random.default_rng(1).integers(0, 16, (4, 32)).astype(np.float32)
    codes[:, 0], codes[:, 1] = 0, 15
    x = Tensor(codes * 0.25 - 1.5)
    scale, least = fit_from_least(x, x._filled(1.0), 15, 21, -1)
    np.testing.assert_allclose(scale.numpy(), 0.25, rtol=1e-5)
    np.testing.assert_allclose(least.numpy(), 1.5, rtol=1e-5)
    signed = Tensor((codes - 8) * 0.125)
    np.testing.assert_allclose(fit_around_zero(signed, signed._filled(1.0), 8, 19).numpy(), 0.125, rtol=1e-5)


def searched(x: against.Array, w: against.Array) -> float:
    """The smallest weighted error of one group over the same scales, in float64, by a solver."""
    low, high, found = min(0.0, x.min()), x.max(), []
    for factor in 14 + 0.1 * np.arange(21):
        codes = np.clip(np.rint(factor / (high - low) * (x - low)), 0, 15)
        root = np.sqrt(w)
        (scale, offset), *_ = np.linalg.lstsq(np.stack([codes * root, root], 1), x * root, rcond=None)
        if offset > 0:
            scale, offset = (w * x * codes).sum() / (w * codes * codes).sum(), 0.0
        found.append((w * (scale * codes + offset - x) ** 2).sum())
    return float(min(found))


@pytest.mark.parametrize("shift", [0, 1, -10, -1000])
def test_fits_are_as_good_as_a_search(shift: int) -> None:
    x = (np.random.default_rng(5).standard_normal((6, 32)) + shift).astype(np.float32)
    w = np.abs(x)
    scale, least = (v.numpy().astype(float) for v in fit_from_least(Tensor(x), Tensor(w), 15, 21, -1))
    codes = np.clip(np.rint((x + least) / scale), 0, 15)
    errors = (w * (scale * codes - least - x) ** 2).sum(-1)
    for error, row, weights in zip(errors, x.astype(float), w.astype(float), strict=True):
        assert error < searched(row, weights) * 1.001


def test_weights_grow_with_importance_and_size() -> None:
    x = np.array([[[1.0, -3, 0, 2], [0, 0, 0, 0]]], np.float32)
    importance = np.array([[[2.0, 1, 1, 0], [0, 0, 0, 0]]], np.float32)
    size = np.sqrt(x * x + 2 * (x * x).mean())
    want = np.stack([importance[0, 0] * size[0, 0], size[0, 1]])  # a group of no importance counts all the same
    np.testing.assert_allclose(weighed(Tensor(x), Tensor(importance)).numpy()[0], want, rtol=1e-6)
