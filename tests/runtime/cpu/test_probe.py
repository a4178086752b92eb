"""Measuring a CPU: figures in a plausible range, stored and forgotten; a busy machine changes nothing."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from kernmill.ir import Context, DeviceError, Machine
from kernmill.runtime import cpu_target, host, probe

FIGURES = {"clock_ghz": 3.0, "fma": 2.0, "0": 40.0}


@pytest.fixture(autouse=True)
def on_device() -> None:
    """One device is enough."""


def test_figures_are_plausible(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(probe, "_STEADY", 100.0)
    monkeypatch.setattr(probe, "_SAMPLE_NS", 200_000.0)
    here = host.this_host()
    with Context(CACHE_DIR=str(tmp_path)):
        row = probe.measure_machine(here)
        assert probe.measured_machine(here) == row
        probe.forget_machine(here)
        assert probe.measured_machine(here) is None
    family: Machine = cpu_target.machine_of(here)
    for name in ("clock_ghz", "fma", "alu", "shuffle", "load", "store", "latency", "lane_cycles"):
        measured = getattr(row, name)
        assert 0 < measured < 64, name
        assert float(f"{measured:.1e}") == measured, "rounded"
    rates = [level.bytes_per_cycle for level in row.levels]
    assert rates[0] > rates[-1]
    assert row.name == f"{family.name}, measured"
    assert row.issue == family.issue, "what loops cannot show"


def test_a_row_with_measured_figures() -> None:
    family = cpu_target.machine_of(host.this_host())
    row = probe.row_from(family, FIGURES)
    assert (row.clock_ghz, row.fma, row.levels[0].bytes_per_cycle) == (3.0, 2.0, 40.0)
    assert row.levels[1] == family.levels[1]
    assert probe.row_from(row, FIGURES).name == row.name


def test_a_busy_machine_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = itertools.accumulate(itertools.cycle((0, 10**7, 0, 2 * 10**7)))
    monkeypatch.setattr(time, "thread_time_ns", lambda: next(clock))
    here = host.this_host()
    with Context(CACHE_DIR=str(tmp_path)):
        with pytest.raises(DeviceError) as error:
            probe.measure_machine(here)
        assert str(error.value) == (
            "info --measure: times of one loop differ by 100%, so the machine is busy. The row in force is kept. "
            "Stop other programs and measure again."
        )
        assert probe.measured_machine(here) is None


@pytest.mark.parametrize("payload", ["nonsense", '{"fma": 0}', '{"nothing": 1}', "[1]"])
def test_a_damaged_row_is_none(payload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = type("Entry", (), {"payload": payload.encode()})
    monkeypatch.setattr(probe, "default_cache", lambda kind: type("Cache", (), {"get": lambda self, key: entry})())
    assert probe.measured_machine(host.this_host()) is None
