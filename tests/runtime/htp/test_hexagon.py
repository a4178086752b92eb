"""Hexagon's versions, as LLVM and the compiler see them."""

from __future__ import annotations

import pytest

from kernmill.ir import DeviceError, Ops, dtypes
from kernmill.runtime import hexagon


@pytest.mark.parametrize("version", hexagon.HEXAGON_VERSIONS)
def test_versions(version: int) -> None:
    machine, target = hexagon.hexagon_host(version), hexagon.hexagon_target(version)
    assert machine.cpu == f"hexagonv{version}"
    assert "-small-data" in machine.features
    assert target.lanes(dtypes.int8) == 128
    assert target.lanes(dtypes.float64) == 1
    assert target.lanes(dtypes.float32) == (1 if version == 67 else 32)
    assert (Ops.FMA in target.ops) == (version == 67)


def test_an_unknown_version() -> None:
    with pytest.raises(DeviceError) as caught:
        hexagon.hexagon_host(5)
    assert str(caught.value) == "Hexagon v5 is not known. Versions: v67, v68, v69, v73, v75, v79, v81."
