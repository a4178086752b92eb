"""A kernel that fails, is rejected or computes wrongly leaves a folder whose `repro.py` shows it again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import Tensor, jit, profile
from kernmill.ir import CompileError, Context, DeviceError, InternalError, KernmillError
from kernmill.runtime import Call, get_device, later, run_folder

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder has been written."""
    monkeypatch.setattr(later.reproduce, "_left", {})


def folder_of(error: KernmillError) -> Path:
    match = re.search(r"`python (.*)/repro\.py` repeats it\.", str(error))
    assert match is not None, error
    return Path(match[1])


def run(folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "repro.py"], cwd=folder, capture_output=True, text=True, timeout=120,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_a_wrong_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor(np.arange(37, dtype=np.float32), device="LLVM").realize()
    with monkeypatch.context() as patch:
        patch.setattr(get_device("LLVM"), "run", lambda calls, **_: [0] * len(calls))
        with Context(CHECK=1, DUMP=str(tmp_path)), pytest.raises(InternalError) as raised:
            (x * 1000.25 + 12345.0).realize()
    folder = folder_of(raised.value)
    assert folder.parent == tmp_path
    np.testing.assert_array_equal(np.load(folder / "inputs.npz")["slot1"], np.arange(37, dtype=np.float32))
    status, shown = run(folder)
    assert re.search(r"then: CHECK: map_37 \(.*test_reproduce\.py:\d+\) on LLVM differs from PYTHON at", shown)
    assert "now: map_37 on LLVM agrees with PYTHON" in shown
    assert status == 0
    monkeypatch.setattr(get_device("LLVM"), "run", lambda calls, **_: [0] * len(calls))
    assert run_folder(folder) == 1


def test_a_source_that_the_compiler_rejects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rejects(name: str, source: str) -> bytes:
        raise CompileError(f"LLVM: {name} is rejected.")

    with monkeypatch.context() as patch:
        patch.setattr(get_device("LLVM"), "compile", rejects)
        with Context(DUMP=str(tmp_path)), pytest.raises(CompileError, match=r"is rejected\. `python") as raised:
            (Tensor(np.ones(39, np.float32), device="LLVM") * 3.375 + 1).realize()
        folder = folder_of(raised.value)
        assert run_folder(folder) == 1
    assert run(folder)[0] == 0


def test_a_launch_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(calls: Sequence[Call], **given: Any) -> list[int]:
        raise DeviceError("LLVM: the launch failed.")

    x = Tensor(np.ones((4, 41), np.float32), device="LLVM").realize()
    monkeypatch.setattr(get_device("LLVM"), "run", fails)
    with Context(DUMP=str(tmp_path)), pytest.raises(DeviceError, match=r"the launch failed\. `python") as raised:
        (x.exp().sum(1).reshape(4, 1) * x).realize()
    assert len(list(folder_of(raised.value).glob("*.uops"))) >= 1
    monkeypatch.undo()
    status, shown = run(folder_of(raised.value))
    assert (status, "agrees with PYTHON" in shown) == (0, True), shown


def test_at_most_ten_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_device("LLVM"), "run", lambda calls, **_: [0] * len(calls))
    with Context(CHECK=1, DUMP=str(tmp_path)):
        for count in (*range(50, 63), 50):
            with pytest.raises(InternalError):
                (Tensor(np.ones(count, np.float32), device="LLVM") * 1000.5).realize()
    assert len(list(tmp_path.glob("kernmill-repro-*"))) <= 10


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    error = InternalError("a sentence.")
    x = Tensor(np.ones(43, np.float32), device="LLVM").realize()
    monkeypatch.setattr(get_device("LLVM"), "run", lambda calls, **_: [0] * len(calls))
    with Context(CHECK=1, DUMP=str(tmp_path / "file" / "below")), pytest.raises(InternalError) as raised:
        (x * 1000.75).realize()
    assert str(raised.value).endswith("Please report it.")
    assert later.reproduce.leave_folder(error) is None


def test_a_damaged_folder(tmp_path: Path) -> None:
    with pytest.raises(KernmillError, match="is damaged or is not a folder of this kind"):
        run_folder(tmp_path)


# --- in a captured call ----------------------------------------------------------------------------------------------
def captured(device: str) -> tuple[Any, Tensor]:
    """A captured function and an argument; it was called, so that the next call is a replay."""
    w = Tensor(np.linspace(0, 1, 45, dtype=np.float32).reshape(9, 5), device=device).realize()
    function = jit(lambda x: ((x @ w).exp().sum(1) * 3.0).softmax(0))
    x = Tensor(np.linspace(-1, 1, 36, dtype=np.float32).reshape(4, 9), device=device).realize()
    for _ in range(3):
        function(x).numpy()
    return function, x


def test_a_replay_is_checked(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Context(CHECK=1, DUMP=str(tmp_path)):
        function, x = captured(device)
        np.testing.assert_allclose(function(x + 0.5).numpy(), function(x + 0.5).numpy())
        checked: list[str] = []
        differs = later.check.difference

        def watched(device: Any, kernel: Any, *given: Any) -> str:
            checked.append(kernel.name)
            return differs(device, kernel, *given)

        monkeypatch.setattr(later.check, "difference", watched)
        before = function.replays
        function(x).numpy()
        assert function.replays == before + 1
        assert (checked != []) == (device != "PYTHON")


def test_a_wrong_result_of_a_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Context(CHECK=1, DUMP=str(tmp_path)):
        function, _ = captured("LLVM")
        with monkeypatch.context() as patch:
            patch.setattr(get_device("LLVM"), "run", lambda calls, **_: [0] * len(calls))
            other = Tensor(np.linspace(0, 2, 36, dtype=np.float32).reshape(4, 9), device="LLVM")
            with pytest.raises(InternalError, match="differs from PYTHON at") as raised:
                function(other)
    assert run(folder_of(raised.value))[0] == 0


@pytest.mark.parametrize("is_profiled", [False, True])
def test_a_launch_that_fails_in_a_replay(is_profiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function, x = captured("LLVM")

    def fails(*given: Any, **named: Any) -> Any:
        raise DeviceError("LLVM: the launch failed.")

    kind = type(get_device("LLVM").prepare([]))
    monkeypatch.setattr(kind, "timed" if is_profiled else "run", fails)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen: Any = profile() if is_profiled else Context(DUMP=str(tmp_path))
    with seen, pytest.raises(DeviceError, match=r"the launch failed\. `python") as raised:
        function(x)
    monkeypatch.undo()
    status, shown = run(folder_of(raised.value))
    assert (status, "agrees with PYTHON" in shown) == (0, True), shown
