"""The bench's programs give the same values in kernmill, captured and eager, as in torch, at tiny sizes."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.programs.program import Program
from bench.programs.suite import PROGRAMS

worker: Any = importlib.import_module("bench.programs.worker")
command: Any = importlib.import_module("bench.programs.__main__")


def first_values(program: Program, library: str, mode: str) -> list[list[float]]:
    call = worker.made(program.name, library, mode, is_tiny=True)
    return [worker.results_of(call()) for _ in range(3)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_captured_and_eager_calls_give_torchs_values(name: str) -> None:
    program = PROGRAMS[name]
    captured = first_values(program, "kernmill", "captured")
    assert all(math.isfinite(value) for values in captured for value in values)
    assert command.agree(program, captured, first_values(program, "kernmill", "eager"))
    if importlib.util.find_spec("torch"):
        assert command.agree(program, captured, first_values(program, "torch", "eager"))


def test_the_command_measures_every_mode_of_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.json"
    given = ["--rows", "stencil", "--peers", "", "--tiny", "--rounds", "1", "--json", str(file)]
    assert command.main([*given, "--against", str(Path(__file__).parent.parent)]) == 0
    assert command.main(["--show", str(file)]) == 0
    row = capsys.readouterr().out.splitlines()[-2]
    assert row.startswith("| stencil |")
    assert row.count("old **") == 4


def test_an_unknown_program_is_named() -> None:
    with pytest.raises(SystemExit, match="no program is named 'nothing'"):
        command.main(["--rows", "nothing"])


def test_a_worker_that_fails_says_why() -> None:
    options = argparse.Namespace(against="", threads=1, clock="wall", tiny=True)
    with pytest.raises(RuntimeError, match="KeyError"):
        command.Worker("nothing", "kernmill", "captured", options, sys.prefix)
