"""`kernmill info --measure` and `--forget`: the table, and a busy machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernmill.commands import machine_row
from kernmill.ir import MACHINES, DeviceError, Machine
from kernmill.runtime import cpu_target, host, probe

ZEN4 = MACHINES["zen4"]


@pytest.fixture(autouse=True)
def on_device() -> None:
    """One device is enough."""


def test_the_table() -> None:
    lines = machine_row.lines_of(ZEN4, replace(ZEN4, fma=1.0))
    assert lines[0].split() == ["figure", "zen4", "measured"]
    assert lines[1].split() == ["fma", "0.7", "1"]
    assert [line.split()[4] for line in lines[2:]] == ["L2", "L3", "memory"]


def test_measured_and_forgotten(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    family: Machine = cpu_target.machine_of(host.this_host())
    row = replace(family, name=f"{family.name}, measured")
    monkeypatch.setattr(probe, "measure_machine", lambda cpu: row)
    monkeypatch.setattr(probe, "forget_machine", lambda cpu: None)
    assert machine_row.run(is_forgotten=False) == 0
    assert f"the row '{row.name}' is in force for this CPU" in capsys.readouterr().out
    assert machine_row.run(is_forgotten=True) == 0
    assert capsys.readouterr().out == f"the row {family.name} is in force\n"


def test_a_busy_machine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def busy(cpu: object) -> Machine:
        raise DeviceError("info --measure: the machine is busy.")

    monkeypatch.setattr(probe, "measure_machine", busy)
    assert machine_row.run(is_forgotten=False) == 1
    assert capsys.readouterr().err == "kernmill info --measure: the machine is busy.\n"
