"""`kernmill info --links`: what placement has measured."""

from __future__ import annotations

import pytest

from kernmill.commands.cli import main
from kernmill.ir import DeviceSpec, DeviceTable, Link
from kernmill.runtime import device_rates


@pytest.fixture(autouse=True)
def on_device() -> None:
    """Once is enough: the command names its devices."""


def test_rates_and_links_are_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Named regression: what placement had measured could not be seen."""
    specs = (DeviceSpec("A", near_bytes=float(1 << 24), long_products_per_ns=0.5), DeviceSpec("B"))
    table = DeviceTable(specs, {("A", "B"): Link(1500.0, 2.5)})
    monkeypatch.setattr(device_rates, "device_table", lambda leaves, nodes: table)
    assert main(["info", "--links"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "A -> B: 1.5 us, 2.5 GB/s"
    assert lines[1] == "  launch 1 us, behind another one 1 us"
    assert "products 1, 0.5 with long rows" in lines[2]
    assert "beyond 16 MiB 1," in lines[3]
