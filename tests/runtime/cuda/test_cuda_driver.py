"""The driver's functions, without a driver."""

from __future__ import annotations

import pytest

from kernmill.ir import DeviceError
from kernmill.runtime import cuda_driver


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "_NAMES", ("libno-such-driver.so",))
    cuda_driver.cuda_driver.cache_clear()
    try:
        with pytest.raises(DeviceError, match=r"^CUDA: no NVIDIA driver is installed \(.*\). Install NVIDIA's driver"):
            cuda_driver.cuda_driver()
        assert "no NVIDIA driver" in cuda_driver.cuda_missing()
    finally:
        cuda_driver.cuda_driver.cache_clear()
