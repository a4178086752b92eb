"""`kernmill profile` of programs that end well, fail, or cannot be found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernmill.commands.cli import main

ROOT = Path(__file__).resolve().parents[3]
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


def command(program: Path, *options: str, columns: int = 140) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": str(columns)}
    return subprocess.run(
        [sys.executable, "-m", "kernmill", "profile", *options, str(program)],
        capture_output=True, text=True, timeout=120, env=environment,
    )  # fmt: skip


def test_a_program_that_is_interrupted(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"{WELL}import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)\n")
    done = command(program)
    assert "ended by Ctrl-C; what it launched is still shown" in done.stderr
    assert "program.py:5" in done.stdout
    assert done.returncode == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_program_that_forks_is_shown_once(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    fork = "import os\nif child := os.fork():\n    os.waitpid(child, 0)\n"
    program.write_text(f"{fork}{WELL}if not child:\n    raise SystemExit(3)\n")
    done = command(program)
    assert (done.returncode, done.stdout.count(" in all: kernels")) == (0, 1)
    assert "still shown" not in done.stderr  # a child shows nothing


def test_a_program_that_prints_a_million_lines(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"{WELL}print('\\n'.join(map(str, range(1_000_000))))\n")
    lines = command(program).stdout.splitlines()
    assert len(lines) > 1_000_000
    assert any("program.py:5" in line for line in lines[-12:])


def test_a_terminal_of_40_columns(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(WELL)
    shown = command(program, columns=40).stdout
    assert "program.py:5" in shown
    assert max(map(len, shown.splitlines())) <= 40


@pytest.mark.parametrize("option", ["--html", "--trace"])
def test_a_folder_that_cannot_be_written_to(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "program.py"
    program.write_text("raise SystemExit('it was run')")
    assert main(["profile", option, str(tmp_path / "absent" / "file"), str(program)]) == 2
    shown = capsys.readouterr().err
    assert "cannot be written to. Give a file in another one." in shown
    assert "it was run" not in shown


def test_the_files_of_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "program.py"
    program.write_text(WELL)
    page, trace = tmp_path / "report.html", tmp_path / "trace.json"
    assert main(["profile", "--html", str(page), "--trace", str(trace), str(program)]) == 0
    assert "open it in a browser" in capsys.readouterr().out
    assert "<title>" in page.read_text()
    assert json.loads(trace.read_text())["traceEvents"]
