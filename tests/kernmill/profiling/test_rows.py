"""Rows of a profile: lines, work, totals that add up; and the table in a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kernmill import Tensor, jit, profile
from kernmill.ir import Context, show_ns
from kernmill.profiling import rows
from kernmill.profiling.table import show_bytes, table_text
from kernmill.runtime import device_rates, families, plan


@pytest.fixture(autouse=True)
def on_device() -> None:
    """The default one: tests of devices take the fixture `device`."""


@pytest.fixture(autouse=True)
def exact() -> None:
    """No plan is known: a graph of another size would get kernels for all sizes."""
    plan.plans.clear()
    families.families.clear()


@pytest.fixture(autouse=True)
def known_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring them on a busy machine would take a second."""
    ceilings = device_rates.Ceilings(50.0, 10.0, 20.0, 1000.0, 1 << 20)
    monkeypatch.setattr(device_rates, "measured_ceilings", lambda device: ceilings)


def test_a_row_is_a_kernel_at_a_line(device: str) -> None:
    x = Tensor(np.ones((6, 51), np.float32), device=device).realize()
    with profile() as found:
        for _ in range(4):
            (x * 2).sum(1).numpy()
        x.exp().numpy()
    assert {row.name: row.calls for row in found.rows} == {"sum_6_k51": 4, "map_6x51": 1}
    for row in found.rows:
        assert row.line.startswith(__file__)
        assert row.device == device
        assert row.total_ns >= row.first_ns > 0
    row = next(row for row in found.rows if row.calls == 4)
    assert (row.flops, row.bytes_moved, row.bytes_written) == (4 * 6 * 51 * 2, 4 * 4 * (6 * 51 + 6), 4 * 6)
    assert row.bound in ("compute", "memory", "launch")


def test_the_totals_are_the_wall_time() -> None:
    x = Tensor(np.ones((300, 300), np.float32)).realize()
    f = jit(lambda x: (x @ x).sum())
    with profile() as found:
        for _ in range(20):
            f(x).item()
    totals = found.totals
    parts = totals.kernels_ns + totals.compile_ns + totals.copies_ns + totals.waiting_ns
    parts += totals.driver_ns + totals.python_ns
    assert parts == pytest.approx(totals.wall_ns, rel=0.03)
    assert sum(row.total_ns for row in found.rows) == totals.kernels_ns


def test_the_work_of_a_kernel_for_all_sizes_is_that_of_its_size() -> None:
    x = Tensor(np.ones((40, 40), np.float32)).realize()
    with profile() as found:
        for n in (3, 5, 7):
            (x[:n].contiguous().exp() * 2.25).realize()
    assert sum(row.flops for row in found.rows) == 2 * 40 * (3 + 5 + 7)


def test_lines_that_are_fused_are_listed() -> None:
    x = Tensor(np.ones(53, np.float32)).realize()
    with profile() as found:
        y = x.exp()
        y = y + 3
        y.realize()
    (row,) = found.rows
    assert [line.rpartition(":")[2] for line in row.others] == [str(int(row.line.rpartition(":")[2]) - 1)]


def test_layers_that_differ_in_a_number() -> None:
    assert rows.short_layers(["Net.blocks.0.q", "Net.blocks.11.q"]) == "Net.blocks.0-11.q"
    assert rows.short_layers(["a.1", "b"]) == "a.1 and 1 more"
    assert rows.short_layers([]) == ""


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_the_table_has_the_width_of_the_terminal(width: int) -> None:
    x = Tensor(np.ones((6, 57), np.float32)).realize()
    with profile() as found:
        (x * 2).sum(1).numpy()
        (x * 3).exp().numpy()
    found.rows[0].line += ", backward of a long name"
    lines = found.text(1, width).splitlines()
    assert max(map(len, lines)) <= width
    assert "share" in lines[0]
    assert "line" in lines[0]


def test_a_long_name_leaves_no_column_out() -> None:
    """Named regression: of a sum over forty axes the table had nothing but its name."""
    with profile() as found:
        Tensor(np.ones((6, 61), np.float32)).sum(1).numpy()
    found.rows[0].name = "sum_" + 40 * "x8"
    assert "ceiling" in found.text(1, 100).splitlines()[0]


def test_shares_are_of_the_kernels_time() -> None:
    """Named regression: of the wall time every share of a short program was 0.0 %, as compiling takes longer."""
    with profile() as found:
        Tensor(np.ones((6, 59), np.float32)).sum(1).numpy()
        time.sleep(0.01)
    shown = [float(line.split("%")[0]) for line in table_text(found.rows).splitlines()[1:]]
    assert sum(shown) == pytest.approx(100, abs=0.1 * len(shown))


def test_no_kernel() -> None:
    with profile() as found:
        pass
    assert str(found).startswith("no kernel was launched")


def test_times_and_sizes_have_three_digits() -> None:
    assert [show_ns(ns) for ns in (12, 1234, 123456, 1.5e6, 2.345e9)] == [
        "0.012 us",
        "1.23 us",
        "123 us",
        "1.5 ms",
        "2.35 s",
    ]
    assert [show_bytes(n) for n in (12, 2048, 1_023_999, 3 << 20, 1 << 30)] == [
        "12 B",
        "2 KiB",
        "1000 KiB",
        "3 MiB",
        "1 GiB",
    ]


def test_no_row_is_above_its_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named regression: ceilings that were measured on a busy machine gave 225,434 %."""
    low = device_rates.Ceilings(1e-6, 1e-6, 1e-6, 1000.0, 1 << 20)
    monkeypatch.setattr(device_rates, "measured_ceilings", lambda device: low)
    x = Tensor(np.ones((256, 256), np.float32)).realize()
    with profile() as found:
        for _ in range(40):
            (x @ x).realize()
    assert found.rows[0].ceiling_share == pytest.approx(1.0)


def test_narrow_operands_have_a_ceiling_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    wide, narrow = (rows.KernelRow("LLVM", name, "", [], calls=10, total_ns=10**7, times=[10**6]) for name in "wn")
    wide.flops, narrow.flops = 10**9, 10**10
    monkeypatch.setattr(rows.KernelRow, "is_narrow", property(lambda row: row is narrow))
    found = rows.ceilings_of([wide, narrow], "LLVM")
    assert (found[False].flops_per_ns, found[True].flops_per_ns) == (100.0, 1000.0)


def test_the_time_of_a_driver_is_apart(opencl: str) -> None:
    """Named regression: what PoCL compiles at a first launch was the program's Python."""
    x = Tensor(np.ones((37, 41), np.float32), device=opencl).realize()
    with profile() as found:
        (x.exp() + x.sum(1, keepdim=True)).sum(0).numpy()
    assert found.totals.driver_ns > 0
    assert "driver" in found.text()


def test_a_slow_first_call_does_not_lower_the_rates() -> None:
    """Named regression: a kernel at 80 % of the ceiling was at 1 %, since its first call had met fresh memory."""
    row = rows.KernelRow("LLVM", "k", "", [], calls=4, total_ns=103_000, first_ns=100_000, times=[1000] * 3)
    row.flops, row.least_ns = 4_000, 3_200.0
    assert (row.gflops, row.ceiling_share) == (1.0, 0.8)


def test_a_sum_of_several_products_counts_each_of_them() -> None:
    """Counted by hand: two operations for each product's multiply-add, and one for each sum of two of them."""
    n = 6
    a, b, c, d = (Tensor(np.ones((n, n), np.float32)).realize() for _ in range(4))
    v = Tensor(np.ones(n, np.float32)).realize()
    cases: tuple[tuple[Callable[[], Tensor], int], ...] = (
        (lambda: a @ b + c @ d, 4 * n**3 + n**2),
        (lambda: a @ b + a @ d, 4 * n**3 + n**2),
        (lambda: a @ v + c @ v, 4 * n**2 + n),
        (lambda: (a * b + c * d).sum(), 4 * n**2),
        (lambda: (a * b).sum(1) * (c * d).sum(1), 4 * n**2 + n),
        (lambda: (a @ b).cat(c @ d), 4 * n**3),
        (lambda: a.reshape(1, 1, n, n).conv2d(b[:2, :2].reshape(1, 1, 2, 2)), 2 * 4 * (n - 1) ** 2),
    )
    for made, flops in cases:
        with profile() as found:
            made().realize()
        assert sum(row.flops for row in found.rows) == flops


def test_kernels_of_one_name_are_counted_each(tmp_path: Path) -> None:
    """Named regression: of twenty compiled kernels with one name, 19 `came from the cache`."""
    x = Tensor(np.ones((3, 7), np.float32)).realize()
    with Context(CACHE_DIR=str(tmp_path)), profile() as found:
        for make in (Tensor.exp, Tensor.tanh):
            (make(x + 0.0625).square().sin() * 3.5).sum(1).realize()
    assert (found.totals.compiled, found.totals.loaded) == (2, 0)
    assert len({row.name for row in found.rows}) == 1
