"""CHECK=1: every kernel is compared with the reference, and a difference stops the program."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import Tensor
from kernmill.ir import Context, InternalError, dtypes
from kernmill.runtime import Call, counters, download, get_device, realize, upload


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
    assert len(list(tmp_path.glob("kernmill-repro-*/repro.py"))) == 1


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
    with Context(CHECK=1, DUMP=""), pytest.raises(InternalError, match=r"`python .*/repro\.py` repeats it\."):
        realize([x * 999.0 + 54321.0])
    assert not list(work.iterdir())
    assert len(list(temporary.glob("kernmill-repro-*/repro.py"))) == 1


@pytest.mark.parametrize("device", ["LLVM", "CL"])
def test_rounding_is_no_difference(device: str, request: pytest.FixtureRequest) -> None:
    """Terms that cancel, comparisons, integers and positions of sums differ by more than rounding itself."""
    if device == "CL":
        request.getfixturevalue("opencl")
    x = np.random.default_rng(0).standard_normal((4, 3000)).astype(np.float32)
    with Context(CHECK=1):
        high = Tensor(x + 1000, device=device)
        (high - high.mean(1, keepdim=True)).sum(1).realize()
        product = Tensor(x[:, :300], device=device) @ Tensor(x[:, :300].T.copy(), device=device)
        Tensor.realize((product * 100).floor(), product > 0.1, product.argmax(1), (product * 1e4).cast(dtypes.int32))


@pytest.mark.parametrize("source", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("target", ["int8", "uint8", "int32", "uint64", "bool", "float16", "bfloat16", "float32"])
def test_casts_of_values_that_do_not_fit_are_the_same(source: str, target: str, device: str) -> None:
    values = [math.nan, math.inf, -math.inf, 1e30, -1e30, 3e9, -3e9, 300.0, -300.0, -1.5, 70000.0, 1e19, -0.0]
    with Context(CHECK=1):
        given = Tensor(np.array(values), device=device).cast(getattr(dtypes, source)).realize()
        (given * 1).cast(getattr(dtypes, target)).realize()


def test_a_result_that_is_wrong_by_little_is_still_found(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor(np.linspace(-1, 1, 64, dtype=np.float32), device="LLVM").realize()
    run = get_device("LLVM").run

    def wrong(calls: Sequence[Call], **given: Any) -> list[int]:
        times = run(calls, **given)
        calls[0].buffers[0].host_array()[5] *= 1.01
        return times

    monkeypatch.setattr(get_device("LLVM"), "run", wrong)
    with Context(CHECK=1), pytest.raises(InternalError, match=r"differs from PYTHON at \[5\]"):
        (x * 64 + 0.5).realize()
