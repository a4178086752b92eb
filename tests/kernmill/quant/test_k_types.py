"""Q2_K to Q6_K: read as written down and as the package does, written with errors no larger than the reference's."""

from __future__ import annotations

import numpy as np
import pytest

from kernmill import Tensor
from kernmill.quant import BLOCKS as ALL
from kernmill.quant.k_types import BLOCKS, fit_around_zero, fit_from_least

from . import against

NAMES = [block.name for block in BLOCKS]


@pytest.mark.parametrize("name", NAMES)
def test_read(name: str) -> None:
    against.check_read(name)
    against.check_read_as_the_package(name)


REFERENCE = {"Q2_K": 0.2959, "Q3_K": 0.1505, "Q4_K": 0.0719, "Q5_K": 0.0362, "Q6_K": 0.0177}  # on normal values


@pytest.mark.parametrize("name", NAMES)
def test_error(name: str, on_device: str) -> None:
    against.check_error(name, REFERENCE[name] * (1.03 if name in ("Q4_K", "Q5_K") else 1), on_device)


@pytest.mark.parametrize("name", NAMES)
def test_special_values_are_written(name: str) -> None:
    """Zeros stay zeros, one value stays nearly itself, the sign and the size of a block do not matter."""
    block, x = ALL[name], against.weights(name)
    back = block.decode(block.encode(Tensor(x))).numpy()
    assert np.isfinite(back).all()
    np.testing.assert_array_equal(back[0], 0)
    np.testing.assert_array_equal(back[3], 0)  # 1e-30 is below any float16 scale
    np.testing.assert_allclose(back[1], 1, rtol=0.05)
    np.testing.assert_allclose(back[7], -2, rtol=0.05)
    for row in (4, 5, 6):
        error = np.sqrt(np.mean((back[row] - x[row]) ** 2.0) / np.mean(x[row] ** 2.0))
        assert error < REFERENCE[name] * 1.6, row


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
