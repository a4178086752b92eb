"""IQ1, IQ2 and IQ3 are written: errors of normal values, fewer with more bits, and weighed by importance."""

from __future__ import annotations

import numpy as np
import pytest

from kernmill import Tensor
from kernmill.quant import BLOCKS
from kernmill.quant.grid_writing import WRITERS
from tests.kernmill.against import only_on

from . import against

on_device = only_on("LLVM")  # the search compares many entries: that the devices agree is tested elsewhere
# on normal values; all are below what the reference's own tests allow (on cosines; there are none for IQ1)
ERRORS = {
    "IQ1_S": 0.47, "IQ1_M": 0.43, "IQ2_XXS": 0.345, "IQ2_XS": 0.30, "IQ2_S": 0.25, "IQ3_XXS": 0.187, "IQ3_S": 0.135,
}  # fmt: skip
REFERENCE = {"IQ2_XXS": 0.0075, "IQ2_XS": 0.0075, "IQ2_S": 0.0075, "IQ3_XXS": 0.005, "IQ3_S": 0.004}


@pytest.fixture(autouse=True)
def package() -> None:
    pytest.importorskip("gguf")


def error(name: str, x: against.Array, importance: against.Array) -> float:
    """The root of the mean of squares."""
    block = BLOCKS[name]
    back = block.decode(block.encode(Tensor(x), Tensor(importance))).numpy()
    return float(np.sqrt(np.mean((back - x) ** 2)))


def test_more_bits_have_smaller_errors() -> None:
    x = against.normal("IQ2_S", 2048)
    ones = np.ones_like(x)
    found = {name: error(name, x, ones) for name in ERRORS}
    assert all(found[name] < bound * np.sqrt(np.mean(x**2)) for name, bound in ERRORS.items()), found
    by_bits = sorted(ERRORS, key=lambda name: BLOCKS[name].size_bytes)
    assert by_bits == list(ERRORS)
    assert sorted(found.values(), reverse=True) == [found[name] for name in by_bits]


@pytest.mark.parametrize("name", REFERENCE)
def test_the_reference_s_own_bound(name: str) -> None:
    """Its tests allow so much of the root of the sum of squares, divided by the number of values."""
    x = (0.1 + 2 * np.cos(np.arange(2048))).astype(np.float32).reshape(-1, 256)
    assert error(name, x, np.ones_like(x)) * np.sqrt(x.size) / x.size < REFERENCE[name] * np.sqrt(4096 / x.size)


@pytest.mark.parametrize("name", WRITERS)
def test_blocks_are_as_the_package_reads_them(name: str) -> None:
    """Every bit of the layout, and special values."""
    package, block, x = pytest.importorskip("gguf"), BLOCKS[name], against.weights(name)
    raw = block.encode(Tensor(x)).numpy()
    want = package.quants.dequantize(raw, package.GGMLQuantizationType[name])
    back = block.decode(Tensor(raw)).numpy()
    against.same_bits(back, want)
    assert np.isfinite(back).all()
    np.testing.assert_array_equal(back[0], 0)
    np.testing.assert_array_equal(back[3], 0)  # 1e-30 is below any float16 scale
    for row in (1, 4, 5, 6, 7, 8, 9):  # no codebook has all vectors of one value
        assert np.sqrt(np.mean((back[row] - x[row]) ** 2.0) / np.mean(x[row] ** 2.0)) < 1.6 * ERRORS[name], row
