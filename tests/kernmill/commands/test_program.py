"""A user's program inside of a command: how it ended, and what is shown of its error."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernmill.commands.program import run_program


def test_a_traceback_begins_in_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As Python itself prints it: without the frames of the command and of runpy."""
    (tmp_path / "fails.py").write_text("def f():\n    raise ValueError('no')\nf()\n")
    assert not run_program("profile", str(tmp_path / "fails.py"), [], "the rest is shown")
    shown = capsys.readouterr().err
    assert "runpy" not in shown
    assert shown.count("File ") == 2
    assert "fails.py ended by ValueError; the rest is shown" in shown
