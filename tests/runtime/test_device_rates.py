"""Rates are measured once, stored, and sane; what a device refuses is in the table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kernmill import Context, Tensor
from kernmill.ir import DeviceSpec, DeviceTable, KernelWork, Op, Ops, UOp, dtypes
from kernmill.runtime import Device, compile_cache, device_rates, get_device, schedules


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No rates are known."""
    monkeypatch.setattr(device_rates, "_tables", {})
    return tmp_path


def test_rates_are_measured_once(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Context(DEVICE="LLVM,PYTHON", CACHE_DIR=str(fresh)):
        table = device_rates.device_table((), ())
        monkeypatch.setattr(device_rates, "_tables", {})
        monkeypatch.setattr(device_rates, "_measure_device", None)  # a second measurement would fail
        monkeypatch.setattr(device_rates, "_measure_link", None)
        again = device_rates.device_table((), ())
    assert again.text() == table.text()
    assert table.names == ("LLVM", "PYTHON")
    fast, slow = table.specs
    assert fast.products_per_ns > slow.products_per_ns
    assert all(rate > 0 for spec in table.specs for rate in spec[1:5])
    assert table.copy_ns("LLVM", "PYTHON", 1 << 20) > table.copy_ns("LLVM", "PYTHON", 1 << 10) > 0
    assert table.copy_ns("LLVM", "LLVM", 1 << 20) == 0


def test_a_device_of_a_leaf_that_is_not_listed_only_holds_memory(fresh: Path) -> None:
    with Context(DEVICE="LLVM,NULL", CACHE_DIR=str(fresh)):
        table = device_rates.device_table(("PYTHON",), ())
    assert [(spec.name, spec.computes) for spec in table.specs] == [("LLVM", True), ("NULL", True), ("PYTHON", False)]


def test_what_a_device_refuses(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def supports(device: Device, op: Op, node: UOp) -> Any:
        return "it has no EXP" if device.name == "PYTHON" and op is Ops.EXP else True

    monkeypatch.setattr(type(get_device("PYTHON")), "supports", supports)
    x = UOp(Ops.PARAM, dtypes.float32, (), (0, 4))
    with Context(DEVICE="LLVM,PYTHON", CACHE_DIR=str(fresh)):
        table = device_rates.device_table((), (x.alu(Ops.EXP), x.alu(Ops.ADD, x)))
        assert table.spec("PYTHON").refused == {(Ops.EXP, (dtypes.float32,)): "it has no EXP"}
        assert table.spec("LLVM").refused == {}
        y = Tensor([1.0, 2.0], device="PYTHON").exp().realize()
    assert y.device == "LLVM"


def test_a_damaged_entry_is_measured_again(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Context(CACHE_DIR=str(fresh)):
        assert device_rates._stored(["device", "x"], lambda: [1.0, 2.04]) == [1.0, 2.0]
        for payload in (b"[]]", b'["a"]', b"[0.0]", b"{}"):
            key = compile_cache.cache_key("rates", "device", "x", schedules.stamp())
            compile_cache.default_cache("rates").put(key, payload, {})
            assert device_rates._stored(["device", "x"], lambda: [3.0]) == [3.0]


def test_equal_devices_have_equal_rates(fresh: Path, far: Any) -> None:
    """Each was measured: what noise made look faster got the weights of the others."""
    names = [far(0), far(1), far(2, mib=8)]
    with Context(DEVICE=",".join(names), CACHE_DIR=str(fresh)):
        table = device_rates.device_table((), ())
    assert table.specs[0][1:8] == table.specs[1][1:8]
    assert table.links[names[0], names[1]] == table.links[names[1], names[0]]
    assert set(table.links) == {(a, b) for a in names for b in names if a != b}


def test_a_slow_first_launch_does_not_make_absurd_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named regression: on a busy machine a launch took longer than the works after it, which then took 1 ns: ceilings
    of 8,200 GB/s on OpenCL, and each kernel of a profile was at 0 % of them."""
    seen: list[float] = []

    def measured(bench: Any, name: str, work: tuple[UOp, list[int]]) -> float:
        seen.append(5e6 if not seen else 20_000 + 0.1 * sum(work[1]))
        return seen[-1]

    monkeypatch.setattr(device_rates._Workbench, "time", measured)
    found = device_rates._measure_device(get_device("LLVM"))
    assert found[0] == pytest.approx(20_000, rel=0.01)
    assert found[3] == pytest.approx(80, rel=0.01)


def test_the_least_of_several_takes_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named regression: each kernel was measured in one moment, and where another program ran just then, its rate was
    half for as long as the cache lived."""
    seen: Counter[str] = Counter()

    def measured(bench: Any, name: str, work: tuple[UOp, list[int]]) -> float:
        seen[name] += 1
        return (20_000 + 0.1 * sum(work[1])) * (2 if seen[name] == 1 + len(name) % 3 else 1)

    monkeypatch.setattr(device_rates._Workbench, "time", measured)
    found = device_rates._measure_device(get_device("LLVM"))
    assert found[0] == 20_001.6
    assert found[3] == pytest.approx(80, rel=0.01) == found[5]


def test_long_rows_have_rates_of_their_own() -> None:
    """Named regression: products of few rows and columns of long rows were predicted at the rates of short rows: half
    of the time on a device whose code does not block."""
    spec = DeviceSpec("A").with_rates([1.0] * 14)._replace(long_products_per_ns=0.5, long_column_bytes_per_ns=0.25)
    plain, long = KernelWork(products=100.0), KernelWork(products=100.0, long_products=100.0)
    assert spec.kernel_ns(long) == 2 * spec.kernel_ns(plain)
    columns = KernelWork(size_bytes=100.0, column_bytes=100.0)
    assert spec.kernel_ns(columns._replace(long_column_bytes=50.0)) == 250
    assert spec.kernel_ns(columns) == 100
    table = DeviceTable((spec,), {})
    for other in (spec._replace(again_bytes_per_ns=9.0), spec._replace(long_products_per_ns=9.0)):
        assert table.text() != table._replace(specs=(other,)).text()  # the former was in no key of a plan
