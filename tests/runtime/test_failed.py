"""Errors of launches have their kernels, unless there was no memory."""

from __future__ import annotations

import numpy as np
import pytest

from kernmill import Tensor
from kernmill.ir import DeviceError, OutOfMemoryError
from kernmill.runtime import failed, get_device, later, recording_profile


@pytest.fixture(autouse=True)
def on_device() -> None:
    """The default one."""


def test_an_error_has_its_kernels() -> None:
    x = Tensor(np.ones((3, 47), np.float32)).realize()
    with recording_profile() as found:
        x.sum(1).realize()
    kernels = [kernel for ran in found.ran.values() for kernel in ran.kernels]
    device, error = get_device("LLVM"), DeviceError("LLVM: no.")
    assert failed.failed_launch(device, error, kernels * 30) is error
    assert error.kernels == tuple(kernels * 30)[:20]
    assert failed.failed_launch(device, error, []) is error
    assert len(error.kernels) == 20  # an error that names its kernels keeps them
    lacking = OutOfMemoryError("LLVM: out of memory.")
    assert failed.failed_launch(device, lacking, kernels) is lacking
    assert lacking.kernels == ()


def test_an_error_without_kernels_is_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(later.reproduce, "explain_failure", lambda error: pytest.fail("it has no kernel"))
    error = DeviceError("LLVM: no.")
    assert failed.explained(error) is error
    other = ValueError("no")
    assert failed.explained(other) is other
