"""What DEBUG and DUMP show."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from kernmill import Tensor, Variable, jit
from kernmill.ir import Context, Ops, UOp, dtypes, parse_uops, reduce_axes, reshape
from kernmill.runtime import (
    Buffer,
    download,
    families,
    get_device,
    plan,
    realize,
    recording_profile,
    upload,
    wants_report,
    work_of,
)
from tests.runtime.processes import run


@pytest.fixture(autouse=True)
def exact() -> None:
    """No plan is known: a graph of another size would get kernels for all sizes."""
    plan.plans.clear()
    families.families.clear()


def work(device: str, columns: int) -> UOp:
    x = reshape(upload(np.ones(5 * columns, np.float32), dtypes.float32, device), (5, columns))
    root = reduce_axes(x * 2.5, Ops.ADD, (1,))
    realize([root])
    return root


def test_nothing_is_shown_unless_asked(device: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert not wants_report()
    work(device, 21)
    assert capfd.readouterr() == ("", "")


SHOWN = {2: "GFLOP/s", 3: "--- schedule of", 4: "--- uops of", 5: "--- source of", 6: "--- assembly of"}


@pytest.mark.parametrize("level", SHOWN)
def test_each_level_shows_more(level: int, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Context(DEBUG=level):
        work(device, 30 + level)
    shown = capsys.readouterr().err
    assert f"sum_5_k{30 + level}" in shown
    for wanted, text in SHOWN.items():
        assert (text in shown) == (wanted <= level)


def test_a_kernel_is_explained_once(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(DEBUG=4):
        work("LLVM", 41)
        work("LLVM", 41)
    shown = capsys.readouterr().err
    assert shown.count("--- uops of") == 1
    assert shown.count("GFLOP/s") == 2


def test_a_profile_has_what_is_reported_too() -> None:
    with recording_profile() as recorder:
        with Context(DEBUG=2):
            work("LLVM", 43)
        work("LLVM", 43)
    assert [(ran.kernels[0].name, len(ran.runs)) for ran in recorder.ran.values()] == [("sum_5_k43", 1)] * 2


def test_the_work_of_a_scatter_is_what_is_done() -> None:
    """It was counted as many times as there are outputs: up to 18,900 GFLOP/s."""
    rows, width, out = 1000, 4, 500
    with recording_profile() as recorder:
        index = Tensor(np.arange(rows) % out)
        Tensor.zeros(out, width).scatter_reduce(
            0, index.reshape(rows, 1).expand(rows, width), Tensor.ones(rows, width), "sum"
        ).realize()
    work = [work_of(get_device("LLVM"), k, {}).flops for ran in recorder.ran.values() for k in ran.kernels]
    assert rows * width <= max(work) <= 3 * rows * width


def test_rates_are_of_the_size_now(capsys: pytest.CaptureFixture[str]) -> None:
    """A symbolic size counted at its greatest: one core showed 2,000 GFLOP/s."""
    product = jit(lambda x, w, n: (x[:n] @ w).sum())
    with Context(DEBUG=2, DEVICE="LLVM"):
        product(Tensor.ones(500, 64).realize(), Tensor.ones(64, 64).realize(), Variable("n", 1, 500).bind(3))
    found = re.findall(r"sum_n500x64_k64 +([\d.]+) us +([\d.]+) GFLOP/s", capsys.readouterr().err)
    assert found
    assert all(float(time_us) * 1e3 * float(rate) < 10 * 2 * 3 * 64 * 64 for time_us, rate in found)


def test_a_folder_per_kernel(device: str, tmp_path: Path) -> None:
    with Context(DUMP=str(tmp_path / "deep" / "folder")):
        work(device, 45)
        work(device, 45)
    (folder,) = (tmp_path / "deep" / "folder").iterdir()
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "kernel.uops",
        "linear.uops",
        f"source.{device.lower()}",
        "kernel.s",
        "kernel.json",
        "kernel.schedule",
        "page.json",
    }
    facts = json.loads((folder / "kernel.json").read_text())
    assert facts["name"] == "sum_5_k45"
    assert facts["device"] == device
    assert facts["loops"] == {"i0": "5", "k0": "45"}
    assert facts["buffers"] == ["float32[5]", "float32[225]"]
    assert facts["schedule"] == (folder / "kernel.schedule").read_text().splitlines() or not facts["schedule"]
    assert facts["bytes"] == 4 * (5 * 45 + 5)
    assert facts["time_ns"] > 0
    assert "REDUCE" in (folder / "kernel.uops").read_text()
    assert "sum_5_k45" in (folder / f"source.{device.lower()}").read_text()
    assert (device == "LLVM") == bool((folder / "kernel.s").read_text())


def test_the_uops_shown_parse_back(tmp_path: Path) -> None:
    with Context(DUMP=str(tmp_path)):
        work("PYTHON", 47)
    (folder,) = tmp_path.iterdir()
    lines = (folder / "kernel.uops").read_text().splitlines()
    body = [line for line in lines if "SINK" not in line]  # its arg is a KernelInfo
    assert parse_uops("\n".join(body)).op is Ops.STORE


def test_the_users_line_is_shown() -> None:
    code = "from kernmill import Tensor\nTensor([1.0, 2.0, 3.0]).exp().sum().realize()\n"
    shown = run(code, None, DEBUG="2", CACHE="0")[1]
    assert "<string>:" in shown or ".py:" in shown


def test_a_timed_run_gives_the_same_result(device: str) -> None:
    with Context(DEBUG=2):
        np.testing.assert_array_equal(download(work(device, 49)), np.full(5, 49 * 2.5, np.float32))
    assert isinstance(work(device, 49).storage, Buffer)
    assert get_device(device).name == device
