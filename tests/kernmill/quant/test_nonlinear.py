"""IQ4, MXFP4 and NVFP4: read as written down and as the package does; MXFP4 written bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from kernmill import Tensor
from kernmill.quant.nonlinear import BLOCKS

from . import against

NAMES = [block.name for block in BLOCKS]


@pytest.mark.parametrize("name", NAMES)
def test_read(name: str) -> None:
    against.check_read(name)
    against.check_read_as_the_package(name)


def test_every_scale_of_mxfp4_is_read() -> None:
    raw = np.tile(np.arange(17, dtype=np.uint8) * 16 + 1, (256, 1))
    raw[:, 0] = np.arange(256)
    package = pytest.importorskip("gguf")
    with np.errstate(over="ignore"):
        want = package.quants.dequantize(raw, package.GGMLQuantizationType.MXFP4)
    against.same_bits(BLOCKS[2].decode(Tensor(raw)).numpy(), want)


def test_mxfp4_is_written_as_the_package_does() -> None:
    against.check_write_as_the_package("MXFP4", against.weights("MXFP4", 64))
    middles = np.array([0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 10, 12, 14], np.float32)
    ties = np.stack([np.concatenate([middles, -middles]) * 2.0**n for n in range(-20, 20)]).astype(np.float32)
    against.check_write_as_the_package("MXFP4", ties)


def test_tiny_values_are_written_as_the_package_does() -> None:
    """Of subnormal numbers, and some that are barely none, the codes were their largest."""
    sizes = np.array([1e-40, 1.4e-45, 2.0**-126, 2.0**-125, 2.0**-124, 1e-38, 3e-39, 0, 2.0**-127], np.float32)
    full = np.repeat(sizes[:, None], 32, 1)
    with np.errstate(over="ignore"):  # the package's
        for x in (full, full * np.linspace(-1, 1, 32, dtype=np.float32)):
            against.check_write_as_the_package("MXFP4", x)


ERRORS = {"IQ4_NL": 0.0759, "IQ4_XS": 0.0764, "MXFP4": 0.1161}  # the reference's, on normal values


@pytest.mark.parametrize("name", ERRORS)
def test_error(name: str, on_device: str) -> None:
    against.check_error(name, ERRORS[name] * 1.04, on_device)


@pytest.mark.parametrize("name", ERRORS)
def test_zeros_are_written(name: str) -> None:
    block = {b.name: b for b in BLOCKS}[name]
    np.testing.assert_array_equal(block.decode(block.encode(Tensor.zeros(2, block.values))).numpy(), 0)
