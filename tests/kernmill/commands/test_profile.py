"""`kernmill profile` of programs that end well, fail, or cannot be found."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernmill.commands.cli import main

WELL = """
import sys
from kernmill import Tensor
x = Tensor.ones(30, 30)
y = (x @ x).exp()
print(y.sum().item() > 0, sys.argv[1:])
"""


@pytest.fixture(autouse=True)
def on_device() -> None:
    """The default one."""


def test_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "program.py"
    program.write_text(WELL)
    assert main(["profile", "--top", "3", str(program), "--top", "x"]) == 0
    shown = capsys.readouterr().out
    assert "True ['--top', 'x']" in shown
    assert "share" in shown
    assert "program.py:5" in shown
    assert " in all: kernels " in shown


@pytest.mark.parametrize(("end", "said"), [("1 / 0", "by ZeroDivisionError"), ("raise SystemExit(3)", "with 3")])
def test_a_program_that_fails_is_still_shown(
    end: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"{WELL}{end}\n")
    assert main(["profile", str(program)]) == 1
    shown = capsys.readouterr()
    assert said in shown.err
    assert "program.py:5" in shown.out


def test_a_program_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "no_such_program.py"]) == 2
    assert "is neither a file nor a module" in capsys.readouterr().err
