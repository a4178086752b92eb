"""AMD's GPUs by name."""

from __future__ import annotations

import pytest

from kernmill.ir import DeviceError
from kernmill.runtime import amd_target


def test_names() -> None:
    assert amd_target.amd_host("gfx1100").triple == "amdgcn-amd-amdhsa"
    with pytest.raises(DeviceError, match=r"^AMD's gfx9 is not known. Known: gfx1100, "):
        amd_target.amd_host("gfx9")
