"""Q2_K to Q6_K: read as written down and as the package does, written with errors no larger than the reference's."""

from __future__ import annotations

import numpy as np
import pytest

from kernmill import Tensor
from kernmill.quant import BLOCKS as ALL
from kernmill.quant.k_types import BLOCKS

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
