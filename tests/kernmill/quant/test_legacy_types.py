"""Q4_0 to Q8_0: read as written down and as the package does, written bit for bit as the package does."""

from __future__ import annotations

import numpy as np
import pytest

from kernmill import Tensor
from kernmill.quant.fitting import inverse, largest
from kernmill.quant.legacy_types import BLOCKS, rounded

from . import against

NAMES = [block.name for block in BLOCKS]


@pytest.mark.parametrize("name", NAMES)
def test_read(name: str) -> None:
    against.check_read(name)
    against.check_read_as_the_package(name)


@pytest.mark.parametrize("name", NAMES)
def test_write(name: str) -> None:
    against.check_write_as_the_package(name, against.weights(name, 64))


ERRORS = {"Q4_0": 0.090, "Q4_1": 0.082, "Q5_0": 0.045, "Q5_1": 0.040, "Q8_0": 0.006}


@pytest.mark.parametrize("name", NAMES)
def test_error(name: str, on_device: str) -> None:
    """The bounds are the reference's errors on normal values and some percent."""
    against.check_error(name, ERRORS[name], on_device)


def test_what_blocks_are_written_with() -> None:
    x = Tensor(np.array([[0.5, -1.5, 1.5, 0.0], [0.0, -0.0, 0.0, 0.0], [2.5, -0.4999, 0.3, -2.5]], np.float32))
    assert largest(x).tolist() == [[-1.5], [0.0], [2.5]]
    assert rounded(x).tolist() == [[1, -2, 2, 0], [0, 0, 0, 0], [3, 0, 0, -3]]
    assert inverse(Tensor([0.0, 4.0])).tolist() == [0.0, 0.25]
    nearly = np.float32(0.49999997)
    assert rounded(Tensor(np.array([nearly, -nearly, 8388609.0], np.float32))).tolist() == [0, 0, 8388609]
