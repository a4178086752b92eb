"""Kernels that tests launched, recorded and run again."""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import Context, Tensor
from kernmill.runtime import get_device
from tests import kernel_records
from tests.kernel_records import SHAPES, Record, check, exact_memory


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two kernels of this process; one of them is launched twice."""
    execute: Any = importlib.import_module("kernmill.runtime.execute")
    monkeypatch.setattr(execute, "run_batch", execute.run_batch)
    kernel_records.start_recording(tmp_path / "kernels")
    with Context(DEVICE="PYTHON"):
        x = np.arange(60, dtype=np.float32).reshape(5, 12)
        assert (Tensor(x) + 1).sum(1).tolist() == (x + 1).sum(1).tolist()
        (Tensor(x) + 1).sum(1).realize()
        (Tensor(x) * 2).realize()
    return sorted((tmp_path / "kernels").iterdir())


def test_equal_kernels_are_kept_once_with_what_they_read_and_wrote(recorded: list[Path]) -> None:
    assert len(recorded) == 2
    records: list[Record] = [pickle.loads(path.read_bytes()) for path in recorded]
    sums = next(record for record in records if "REDUCE" in record.text)
    np.testing.assert_array_equal(sums.results[0].view(np.float32), np.arange(60).reshape(5, 12).sum(1) + 12)


def test_they_run_again_in_the_shape_of_a_cpu(recorded: list[Path], opencl: str, closed_devices: None) -> None:
    with exact_memory():
        assert check(recorded, ["cpu"], time.monotonic() + 60) == 0
        assert check(recorded, ["cpu"], time.monotonic() - 1) == 1  # out of time


def test_a_result_that_differs_is_told(
    recorded: list[Path], opencl: str, closed_devices: None, capsys: pytest.CaptureFixture[str]
) -> None:
    record: Record = pickle.loads(recorded[0].read_bytes())
    record.results[0][3] ^= 1
    recorded[0].write_bytes(pickle.dumps(record))
    with exact_memory():
        assert check(recorded, ["cpu"], time.monotonic() + 60) == 1
    assert "1 of" in capsys.readouterr().out


def test_the_checker_sees_a_buffer_that_is_one_value_too_short(
    recorded: list[Path], opencl: str, closed_devices: None, tmp_path: Path
) -> None:
    """Or a log that stays empty would mean nothing."""
    with Context(DEVICE="CL"):
        if "Oclgrind" not in get_device().cache_tag():
            pytest.skip("this driver is no checker")
    code = """
import sys
from tests import kernel_records as records
from kernmill.runtime import get_device
make = records.allocate_buffer
records.allocate_buffer = lambda device, dtype, count: make(device, dtype, count - 1)
type(get_device("CL")).copy_in = lambda *_: None
records.run_again.__globals__["_difference"] = lambda *_: ""
sys.exit(records.main())
"""
    log = tmp_path / "log"
    done = subprocess.run(
        [sys.executable, "-c", code, str(recorded[0].parent)], env={**os.environ, "OCLGRIND_LOG": str(log)},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Invalid" in done.stdout
    for shape in SHAPES:
        assert f"as {shape}" in done.stdout
