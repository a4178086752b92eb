"""`kernmill explain EXPRESSION --shapes`: its passes as text and as a page; what cannot be read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernmill.commands.cli import main
from kernmill.runtime import families, plan


@pytest.fixture(autouse=True)
def on_device() -> None:
    """The default one; no graph is known, so that each is planned."""
    plan.plans.clear()
    families.families.clear()


def test_every_pass_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "softmax(x @ w)", "--shapes", "x=4x8,w=8x8"]) == 0
    shown = capsys.readouterr().out
    assert "1. The expression, as a graph" in shown
    assert "2. The planner fuses it into 2 kernels" in shown
    assert "ends at REDUCE of ADD (4, 8, 1): it has a reduction and is read at 3 different indices" in shown
    assert "reads of other kernels: REDUCE of ADD (4, 8, 1)" in shown
    assert "== kernel 1: sum_4x8_k8 on LLVM" in shown
    assert "-- 4. vectorize: after unrolling" in shown
    assert "schedule: vectorize i1 8" in shown
    assert "estimate, one thread: bound by " in shown
    assert "LLVM IR: what the device's compiler is given" in shown
    assert "more lines; DEBUG=1 shows them" in shown
    assert "<expression>" not in shown


def test_as_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["explain", "--html", str(page), "--shapes=x=5x5", "x.exp().sum()"]) == 0
    assert f"{page}: the same as a page" in capsys.readouterr().out
    assert '"title":"x.exp().sum()"' in page.read_text()


@pytest.mark.parametrize(
    ("text", "shapes", "said"),
    [
        ("x @", "x=4", "'x @' is not an expression of Python"),
        ("y + 1", "x=4", "'y' is neither a tensor of --shapes nor a method of Tensor"),
        ("x.shape", "x=4", "is a tuple. Write an expression that is a Tensor."),
        ("__import__('os')", "x=4", "'__import__' is neither a tensor"),
        ("x", "x=4,,", "--shapes '' is not NAME=SIZExSIZE. Write it as x=4x8,w=8x8."),
        ("x", "x=99999x99999", "9,999,800,001 elements"),
        ("x", "x=0", "0 elements"),
        ("x @ w", "x=4x8,w=9x8", "matmul"),
        ("x.no_such()", "x=4", "cannot be computed"),
    ],
)
def test_what_cannot_be_explained(text: str, shapes: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", text, "--shapes", shapes]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("kernmill: ")
    assert said in shown
    assert "Traceback" not in shown


def test_what_a_command_computes_has_a_line_of_ours() -> None:
    """Named regression: it had the line of the interpreter's `runpy`."""
    command = [sys.executable, "-m", "kernmill", "explain", "x.exp()", "--shapes", "x=3"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "DEBUG": "1"})
    lines = [line for line in found.stderr.splitlines() if line.startswith("compiled ")]
    assert any(os.path.join("commands", "expression.py") in line for line in lines)
    assert not any("runpy" in line for line in lines)
