"""LLVM: what its kernels say besides their results."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from kernmill import Context, Tensor, jit
from kernmill.ir import OutOfMemoryError, dtypes
from kernmill.runtime import cpu_target, elf, get_device, host, ops_llvm, plan, pool


@pytest.mark.skipif(
    not elf.is_elf_host() or not host.this_host().has("avx512f"),
    reason="finds malloc by itself, or takes no heap for this",
)
def test_a_kernel_without_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What malloc gave was written to without a look at it."""
    nothing = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(lambda _: None)
    address = ctypes.cast(nothing, ctypes.c_void_p).value
    a, b = (np.random.default_rng(n).normal(size=(1021, 1021)).astype(np.float32) for n in (0, 1))
    with Context(DEVICE="LLVM", CACHE="0"):
        x, y = Tensor(a).realize(), Tensor(b).realize()
        with monkeypatch.context() as patch:
            patch.setitem(elf.libc_externs(), "malloc", address)
            with pytest.raises(OutOfMemoryError, match=r"LLVM: out of memory: a kernel needs [\d,]+ bytes per thread"):
                (x @ y).realize()
        np.testing.assert_allclose((x[:1000] @ y).numpy(), a[:1000] @ b, rtol=1e-3, atol=1e-3)
    plan.plans.clear()


def test_missing_memory_is_told_to_the_batch_that_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever batch looked first was told, and the one that lacked memory gave any values."""
    launch = pool.ThreadPool.run

    def refused(threads: pool.ThreadPool, table: pool.LaunchTable) -> None:
        launch(threads, table)
        ops_llvm._tell(64)
        with monkeypatch.context() as patch:  # another thread's, on another pool
            patch.setattr(pool.ThreadPool, "run", launch)
            with suppress(OutOfMemoryError):
                other(x).realize()

    with Context(DEVICE="LLVM"):
        x, other = Tensor([1.0, 2.0]).realize(), jit(lambda x: x * 2 + 1)
        for _ in range(3):
            other(x).realize()
        with monkeypatch.context() as patch:
            patch.setattr(pool.ThreadPool, "run", refused)
            with pytest.raises(OutOfMemoryError, match="64 bytes"):
                (x * 3).realize()
        np.testing.assert_array_equal((x * 5).numpy(), [5.0, 10.0])


def test_missing_memory_that_nobody_was_told_of_is_not_told_to_others() -> None:
    """As after Ctrl-C, between a launch and the look at what it lacked."""
    ops_llvm._tell(64)
    with Context(DEVICE="LLVM"):
        np.testing.assert_array_equal((Tensor([1.0, 2.0]) * 7).numpy(), [7.0, 14.0])


def test_files_that_were_read_take_no_memory_away() -> None:
    """Free was what nobody had used yet: after a large file was read, a model's context was refused."""
    try:
        facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text("ascii").splitlines())
    except OSError:
        pytest.skip("no /proc/meminfo")
    available, free, slack = (
        int(text.split()[0]) << 10 for text in (facts["MemAvailable"], facts["MemFree"], "262144")
    )
    if available < free + 2 * slack:
        pytest.skip("no files in memory")
    assert get_device("LLVM").props().free_bytes > available - slack


PAIR = (dtypes.bfloat16, dtypes.bfloat16)


@pytest.mark.parametrize(
    ("cpu", "features", "has_pairs"),
    [
        ("znver4", ("+avx512f", "+avx512vl", "+avx512bf16"), True),  # Zen 5 has this name, too
        ("znver4", ("+avx512f", "+avx512vl", "-avx512bf16"), False),
        ("sapphirerapids", ("+avx512f", "+avx512vl", "+avx512bf16"), False),  # half as many as of float32
        ("x86-64-v3", ("+avx2", "-avx512f", "-avx512bf16"), False),
    ],
)
def test_pairs_of_bfloat16_where_they_are_faster(cpu: str, features: tuple[str, ...], has_pairs: bool) -> None:
    machine = host.Host("x86_64", cpu, features, 1 << 15, 1 << 20, 1 << 23)
    assert (PAIR in cpu_target.host_target(machine).dots) is has_pairs


@pytest.mark.parametrize(("features", "has_masks"), [
    (("+avx512f", "+avx2", "+avx"), True), (("-avx512f", "+avx2", "+avx"), True), (("-avx2", "+avx"), False),
])  # fmt: skip
def test_avx2_has_masks(features: tuple[str, ...], has_masks: bool) -> None:
    """Once without: loops of odd sizes had no lanes, and 129 x 257 x 257 took ten times as long."""
    machine = host.Host("x86_64", "haswell", features, 1 << 15, 1 << 18, 1 << 23)
    assert cpu_target.host_target(machine).has_masks is has_masks


def test_bytes_do_not_ask_for_pairs() -> None:
    machine = host.Host("x86_64", "znver4", ("+avx512f", "+avx512vl", "+avx512vnni"), 1 << 15, 1 << 20, 1 << 23)
    assert cpu_target.host_target(machine).dots == {(dtypes.uint8, dtypes.int8)}
