"""Splits, copies, reasons and times of a placed graph, as text and through `kernmill explain`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import Context, Tensor
from kernmill.commands.cli import main
from kernmill.ir import DeviceSpec, DeviceTable, KernmillError, Link
from kernmill.runtime import collecting_placements, device_rates, placement_report, plan

PROGRAM = """
import numpy as np
from kernmill import Tensor
x = Tensor(np.ones((10, 16), np.float32), device="LLVM")
w = Tensor(np.ones((16, 4), np.float32), device="PYTHON")
print((x @ w).numpy().sum())
"""


@pytest.fixture(autouse=True)
def rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM computes 1,000 times as fast as PYTHON; a copy takes a microsecond and 1 ns a byte."""

    def table(leaves: Any, nodes: Any) -> DeviceTable:
        specs = [DeviceSpec(name).with_rates([100.0, r, r, r]) for name, r in (("LLVM", 10.0), ("PYTHON", 0.01))]
        return DeviceTable(tuple(specs), {(a.name, b.name): Link(1_000.0, 1.0) for a in specs for b in specs})

    monkeypatch.setattr(device_rates, "device_table", table)
    plan.plans.clear()


def test_a_graph_is_explained() -> None:
    with Context(DEVICE="LLVM,PYTHON", CACHE="0"), collecting_placements() as placed:
        x = Tensor(np.ones((8, 16), np.float32), device="LLVM").realize()
        w = Tensor(np.ones((16, 4), np.float32), device="PYTHON").realize()
        np.testing.assert_array_equal((x @ w).numpy(), np.full((8, 4), 16, np.float32))
    ((graph, table),) = placed
    lines = placement_report.placement_lines(graph, table)
    assert lines[0] == "split 1 of 1  LLVM      1 kernel  in: 256 bytes from PYTHON, 1.26 us  predicted 0.203 us"
    assert lines[1].startswith("    reduce at ")
    assert lines[1].endswith(": cheaper by 103 us than PYTHON")
    assert lines[2] == "predicted 1.46 us in all"
    assert lines[3].startswith("this placement: 1.46 us; all on LLVM: 1.46 us (+0 %); all on PYTHON: ")
    (split,) = placement_report.splits_of(graph, table)
    kernels_ns, copies_ns = placement_report.measure(graph, [split])
    assert split.measured_ns == kernels_ns > 0 < copies_ns


def test_debug_prints_the_splits(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(DEVICE="LLVM,PYTHON", CACHE="0", DEBUG=1):
        (Tensor([1.0, 2.0], device="PYTHON") + 1).realize()
    assert "split 1 of 1  " in capsys.readouterr().err


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    monkeypatch.setattr(sys, "argv", ["kernmill", "explain", "--device", "LLVM,PYTHON", str(path)])
    with Context(CACHE="0"):
        assert main() == 0
    said = capsys.readouterr().out
    assert said.startswith("640.0\n\ngraph of 2 kernels and copies, result at ")
    assert f"{path}:6" in said
    assert "measured" in said


def test_one_device_has_nothing_to_explain() -> None:
    from kernmill.commands.explain import run

    with Context(DEVICE="LLVM"), pytest.raises(KernmillError, match="explain: DEVICE=LLVM names one device"):
        run("program.py", (), most=1)
