"""PROFILE=file: a trace or a report of a whole process, of its children, of one that fails, forks or is interrupted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
BEGIN = "from kernmill import Tensor\n(Tensor([1.0, 2.0]) * 3).realize()\n"


@pytest.fixture(autouse=True)
def on_device() -> None:
    """The default one."""


def run(code: str, target: Path, status: int = 0) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PROFILE": str(target)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == status, done.stderr
    return done.stderr


def events_of(target: Path) -> list[dict[str, Any]]:
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    found: list[dict[str, Any]] = json.loads(target.read_text())["traceEvents"]
    return found


def kernels(target: Path) -> int:
    return sum(event.get("cat") == "kernel" for event in events_of(target))


def test_a_trace_of_a_process(tmp_path: Path) -> None:
    assert run(BEGIN, tmp_path / "trace.json") == ""
    assert kernels(tmp_path / "trace.json") == 1


def test_a_report_of_a_process(tmp_path: Path) -> None:
    assert run(BEGIN, tmp_path / "report.html") == ""
    assert '"name":"map_2"' in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("end", ["1 / 0", "raise SystemExit(1)"])
def test_a_program_that_fails(end: str, tmp_path: Path) -> None:
    run(f"{BEGIN}{end}", tmp_path / "trace.json", 1)
    assert kernels(tmp_path / "trace.json") == 1


def test_a_program_that_is_interrupted(tmp_path: Path) -> None:
    run(f"{BEGIN}import os, signal\nos.kill(os.getpid(), signal.SIGINT)", tmp_path / "trace.json", 1)
    assert kernels(tmp_path / "trace.json") == 1


def test_processes_share_a_file(tmp_path: Path) -> None:
    code = f"{BEGIN}import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BEGIN!r}], check=True)"
    run(code, tmp_path / "trace.json")
    assert kernels(tmp_path / "trace.json") == 2
    assert len({event["pid"] for event in events_of(tmp_path / "trace.json")}) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_program_that_forks(tmp_path: Path) -> None:
    code = f"""{BEGIN}
import multiprocessing
def child():
    (Tensor([1.0, 2.0, 3.0]) * 3).realize()
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
(Tensor([1.0, 2.0]) * 3).realize()
"""
    run(code, tmp_path / "trace.json")
    assert kernels(tmp_path / "trace.json") in (2, 3)  # the child's too, where it ends as a process does


@pytest.mark.parametrize(
    ("name", "said"),
    [("trace.txt", "a trace is a .json file, a report an .html file"), ("absent/trace.json", "cannot be written to")],
)
def test_a_name_that_cannot_be(name: str, said: str, tmp_path: Path) -> None:
    assert said in run("import kernmill", tmp_path / name, 1)
