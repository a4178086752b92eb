"""CHECK=1: every kernel is compared with the reference, and a difference stops the program."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest

from kernmill.ir import Context, InternalError, dtypes
from kernmill.runtime import counters, download, get_device, realize, upload


def test_a_right_kernel_passes(device: str) -> None:
    with Context(CHECK=1):
        root = upload(np.arange(37, dtype=np.float32), dtypes.float32, device) * 3.125
        realize([root])
    np.testing.assert_array_equal(download(root), np.arange(37) * 3.125)


def test_the_reference_lives_as_long_as_the_plan() -> None:
    with Context(CHECK=1):
        for seed in range(3):
            root = upload(np.full(37, seed, np.float32), dtypes.float32, "LLVM") * 3.0625
            realize([root])
            if not seed:
                made = counters.compiled, counters.from_disk, counters.from_memory
    assert made == (counters.compiled, counters.from_disk, counters.from_memory)


def test_a_wrong_result_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that does nothing stands in for one that computes wrongly."""
    x = upload(np.arange(37, dtype=np.float32), dtypes.float32, "LLVM")
    monkeypatch.setattr(get_device("LLVM"), "run", lambda calls, **_: [0] * len(calls))
    with Context(CHECK=1, DUMP=str(tmp_path)), pytest.raises(InternalError, match="on LLVM differs from PYTHON at"):
        realize([x * 1000.0 + 12345.0])
    assert len(list(tmp_path.glob("mismatch_*.uops"))) == 1


def test_a_device_that_runs_nothing_is_not_compared() -> None:
    with Context(CHECK=1):
        realize([upload(np.ones(5, np.float32), dtypes.float32, "NULL") + 41.0])


def test_without_dump_a_difference_leaves_nothing_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, temporary = tmp_path / "work", tmp_path / "temporary"
    work.mkdir()
    temporary.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    x = upload(np.arange(37, dtype=np.float32), dtypes.float32, "LLVM")
    monkeypatch.setattr(get_device("LLVM"), "run", lambda calls, **_: [0] * len(calls))
    with Context(CHECK=1, DUMP=""), pytest.raises(InternalError, match=r"Its UOps are in .*mismatch_\w+\.uops"):
        realize([x * 999.0 + 54321.0])
    assert not list(work.iterdir())
    assert len(list(temporary.glob("*/mismatch_*.uops"))) == 1
