"""bench/against.py without measuring: which rows are compared, and what is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import against


def test_rows_that_both_sides_have_are_compared_round_by_round(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    old = iter([{"sum": 2.0, "sort": 1.0, "gone": 1.0}, {"sum": 4.0, "sort": 1.0, "gone": 1.0}])
    new = iter([{"sum": 1.0, "sort": 2.0, "fresh": 1.0}, {"sum": 1.0, "sort": 4.0, "fresh": 1.0}])
    monkeypatch.setattr(against, "_run", lambda checkout, *_: next(old if checkout == tmp_path else new))
    against.main([str(tmp_path), "--rounds", "2"])
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:5] for line in shown] == [
        ["sum", "old", "/", "new", "3.00"],
        ["sort", "old", "/", "new", "0.38"],
    ]
    assert ["slower" in line for line in shown] == [False, True]
