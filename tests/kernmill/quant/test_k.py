"""Q2_K to Q6_K: read as written down and as the package does, written with errors no larger than the reference's."""

from __future__ import annotations

import numpy as np
import pytest

from kernmill import Tensor
from kernmill.quant import BLOCKS as ALL
from kernmill.quant.k import BLOCKS, fit_around_zero, fit_from_least

from . import against

NAMES = [block.name for block in BLOCKS]


@pytest.mark.parametrize("name", NAMES)
def test_read(name: str) -> None:
    against.check_read(name)
    against.check_read_as_the_package(name)


REFERENCE = {"Q2_K": 0.2959, "Q3_K": 0.1505, "Q4_K": 0.0719, "Q5_K": 0.0362, "Q6_K": 0.0177}  # on normal values


@pytest.mark.parametrize("name", NAMES)
def test_error(name: str, on_device: str) -> None:
    against.check_error(name, REFERENCE[name] * 1.03, on_device)


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
