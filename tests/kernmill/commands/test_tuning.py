"""`kernmill tune`: the program's kernels, the time's shares, what is printed, what a later process finds."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernmill.commands import tuning
from kernmill.commands.cli import main
from kernmill.commands.tuning import before_and_after, collect, line_of, tune_all
from kernmill.compiler import parse_schedule
from kernmill.ir import Context, KernmillError
from kernmill.runtime import Tuned, get_device, schedules

PROGRAM = """
import sys
from kernmill import Tensor
if __name__ == "__main__":
    x = Tensor([[1.0, 2.0], [3.0, 4.5]])
    print((x @ x).sum().item(), sys.argv[1:])
    sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(autouse=True)
def on_device() -> None:
    """The commands choose their device themselves."""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def test_the_kernels_of_a_program(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, ended_well = collect(program, ["3", "b"])
    assert not ended_well  # with 3
    assert "['3', 'b']" in capsys.readouterr().out
    assert found
    assert found == sorted(found, key=lambda f: -f.share)
    assert sum(f.share for f in found) == pytest.approx(1)


def test_a_program_that_fails_is_tuned_as_far_as_it_came(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it had launched by then was lost with it."""
    path = tmp_path / "failing.py"
    path.write_text(PROGRAM.replace("sys.exit(int(sys.argv[1]))", "raise ValueError('a mistake')"))
    found, ended_well = collect(str(path), ["0"])
    assert found
    assert not ended_well
    text = capsys.readouterr().err
    assert "ValueError: a mistake" in text
    assert f"{path} ended by ValueError; the kernels that it launched are still tuned" in text


def test_no_such_program() -> None:
    with pytest.raises(KernmillError, match="'nowhere' is neither a file nor a module"):
        collect("nowhere", [])


def test_the_command_stores_what_it_finds(program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Context(CACHE_DIR=str(tmp_path / "cache")):
        assert main(["tune", "--seconds", "2", program, "0"]) == 0
        kernels, ended_well = collect(program, ["0"])
        assert ended_well
        assert any(schedules.stored_schedule(get_device(f.device), f.kernel) for f in kernels)
    text = capsys.readouterr().err
    assert "[1/" in text
    assert "The schedules are stored" in text or "No schedule was faster by 1 % or more." in text


def test_schedules_that_are_not_faster_are_not_announced(tmp_path: Path) -> None:
    """Named regression: it said "stored" for schedules at 1.00x, and nothing of a busy machine."""
    some: list[Any] = [SimpleNamespace(speedup=1.0), SimpleNamespace(speedup=1.004)]
    with Context(CACHE_DIR=str(tmp_path / "cache")):
        assert tuning._kept(some) == "No schedule was faster by 1 % or more."
        some.append(SimpleNamespace(speedup=1.2))
        assert tuning._kept(some).startswith("The schedules are stored")


def test_a_busy_machine_is_named(
    program: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (40.0, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    with Context(CACHE="0"):
        main(["tune", "--seconds", "1", program, "0"])
    assert capsys.readouterr().err.startswith(
        "kernmill tune: the machine is busy (load 40.0 on 4 cores), so times may be misleading. Stop other "
        "programs, or "
        "tune again later.\n"
    )


@pytest.mark.parametrize(("cache", "why"), [("0", "CACHE=0"), ("ro", "CACHE=ro")])
def test_it_does_not_say_stored_where_nothing_is(
    program: str, capsys: pytest.CaptureFixture[str], cache: str, why: str
) -> None:
    """It promised that the schedules "are stored and will be used from now on" with no cache to store them in."""
    with Context(CACHE=cache):
        assert main(["tune", "--seconds", "1", program, "0"]) == 0
    text = capsys.readouterr().err
    assert f"No schedule is stored ({why})" in text
    assert "will be used" not in text


def test_a_program_without_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of none of them it said that their schedules are stored."""
    (tmp_path / "idle.py").write_text("print('idle')")
    assert main(["tune", str(tmp_path / "idle.py")]) == 0
    assert capsys.readouterr().err == (
        f"kernmill tune: {tmp_path / 'idle.py'} launches no kernel, so there is nothing to tune\n"
    )


def test_a_program_that_fails_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit status was 0: who calls it from a script saw nothing."""
    (tmp_path / "failing.py").write_text("import no_such_module")
    assert main(["tune", str(tmp_path / "failing.py")]) == 1
    assert "ended by ModuleNotFoundError" in capsys.readouterr().err


def test_new_kernels_come_before_those_that_were_searched(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same kernels were searched again each time, and new ones got what was left."""
    with Context(CACHE_DIR=str(tmp_path / "cache")):
        found, _ = collect(program, ["0"])
        assert not any(f.is_known for f in found)
        first = found[0]
        schedules.store_schedule(get_device(first.device), first.kernel, "", {})
        again, _ = collect(program, ["0"])
        assert again[-1].is_known
        assert again[-1].kernel.ast is first.kernel.ast
        assert {f.kernel.ast for f in again} == {f.kernel.ast for f in found}
        assert main(["tune", "--seconds", "1", program, "0"]) == 0
    assert f"{len(found)} kernels in {program}, 1 of them searched before; 1 s to tune them" in capsys.readouterr().err


def test_time_that_is_up_ends_it(program: str) -> None:
    assert tune_all(collect(program, ["0"])[0], 0.0, 2, io.StringIO()) == []


def test_a_line_per_kernel_and_a_table(program: str) -> None:
    kernel = collect(program, ["0"])[0][0].kernel
    found = Tuned(kernel, parse_schedule(""), 1500.0, 3000.0, 0.004, 7, lost=1)
    same = replace(found, time_ns=3000.0)
    assert line_of(found) == f"{kernel.name}: 3.0 us -> 1.5 us (2.00x), 7 tried, 1 lost"
    lines = before_and_after([found, same], {kernel.ast: 0.75})
    assert lines[0].split() == ["share", "before", "after", "gain", "noise", "schedule", "line", "kernel"]
    assert lines[1].split()[:9] == ["75.0%", "3", "us", "1.5", "us", "+100.0%", "0.4%", "found", "program.py:6"]
    assert "unchanged" in lines[2]
    assert lines[3] == "times of the same program differed by 0.4% (median), so the machine was steady enough"
    found.noise = 0.1
    (last,) = before_and_after([found], {kernel.ast: 0.75})[2:]
    assert last.endswith("unsteady: stop other programs and tune again for small gains")
