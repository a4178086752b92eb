"""`python -m bench.drivers`: the drivers it finds, and what it says of a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import drivers


def test_drivers_that_are_here_have_a_library() -> None:
    found = drivers.find_drivers()
    assert found.keys() <= drivers.DRIVERS.keys()
    assert all(Path(library).exists() or "/" not in library for library in found.values())


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    drivers.main(["--list", "--driver", "mine=/opt/libmine.so"])
    assert capsys.readouterr().out == "mine\t/opt/libmine.so\n"


def test_a_driver_without_a_library() -> None:
    with pytest.raises(SystemExit, match=r"^bench.drivers: --driver mine: give NAME=LIBRARY, for example "):
        drivers.main(["--driver", "mine"])


def test_a_driver_that_fails_has_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.drivers.subprocess.run", lambda *_, **__: None)
    assert drivers.ratios("/nowhere/lib.so", ["sum"], is_quick=True) == {}
