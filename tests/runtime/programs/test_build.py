"""From a kernel to a program: memory, disk, compiler; damage; several processes; written schedules."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kernmill.compiler import Schedule
from kernmill.ir import CompileError, Context, Kernel, Ops, Target, UOp, dtypes, elementwise, reduce_axes, reshape
from kernmill.runtime import (
    Call,
    allocate_buffer,
    build,
    build_all,
    counters,
    download,
    expect,
    get_device,
    given_actions,
    host,
    realize,
    render,
    schedules,
    upload,
)
from tests.compiler.kernels import data, kernels, matmul, scheduled, total
from tests.runtime.processes import run, start

WORK = """
a = leaf(np.arange(48, dtype=np.float32).reshape(6, 8))
print(float(value(reduce_axes(a * 2.0 + 1.0, Ops.ADD, (0, 1))).sum()), counters.compiled, counters.from_disk)
print("llvmlite" in sys.modules)
"""


def entries(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file() and len(path.name) == 64]


def test_the_second_run_compiles_nothing_and_never_imports_llvm(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert run(WORK, cache)[0].split() == ["2304.0", "1", "0", "True"]
    assert run(WORK, cache)[0].split() == ["2304.0", "0", "1", "False"]


def test_a_damaged_entry_is_compiled_again_and_repaired(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    run(WORK, cache)
    for entry in entries(cache):
        raw = bytearray(entry.read_bytes())
        raw[len(raw) // 2] ^= 0xFF
        entry.write_bytes(raw)
    assert run(WORK, cache)[0].split()[:3] == ["2304.0", "1", "0"]
    assert run(WORK, cache)[0].split()[:3] == ["2304.0", "0", "1"]
    for entry in entries(cache):
        entry.write_bytes(b"")
    assert run(WORK, cache)[0].split()[:3] == ["2304.0", "1", "0"]


def test_two_processes_at_once_fill_one_cache(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    both = [start(WORK, cache) for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert out.split()[0] == "2304.0"
    count = 3 + host.this_host().has("amx-tile")
    assert len(entries(cache)) == count, "the pool's code, the kernel, the plan, and whether the matrix unit is right"
    assert run(WORK, cache)[0].split()[1] == "0"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder_is_no_obstacle(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(0o500)
    assert run(WORK, cache / "deeper")[0].split()[0] == "2304.0"


def test_a_file_in_the_folders_place_is_no_obstacle(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.write_text("no folder")
    out, err = run(WORK, cache)
    assert out.split()[:2] == ["2304.0", "1"]
    assert "CACHE_DIR" in err
    assert cache.read_text() == "no folder"


def test_without_a_cache_nothing_is_written(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    run(WORK, cache, CACHE="0")
    assert not entries(cache)


# --- in this process -------------------------------------------------------------------------------------------------


def test_a_program_is_built_once(device: str) -> None:
    (kernel,) = kernels(scheduled(total(data(0, 3, 11), 1) * 7.25))
    first = build(get_device(device), kernel)
    before = counters.compiled, counters.from_disk, counters.from_memory
    assert build(get_device(device), kernel) is first
    assert (counters.compiled, counters.from_disk, counters.from_memory) == (before[0], before[1], before[2] + 1)


def test_a_program_goes_with_the_last_that_launches_it(device: str) -> None:
    (kernel,) = kernels(scheduled(total(data(0, 3, 13), 1) * 7.125))
    machine = get_device(device)
    out, x = (allocate_buffer(device, dtypes.float32, count) for count in (3, 39))
    program = weakref.ref(build(machine, kernel))
    assert program() is None
    batch = machine.prepare([Call(build(machine, kernel), (out, x))])
    program = weakref.ref(build(machine, kernel))
    batch.run()
    assert program() is not None
    del batch
    assert program() is None


def test_equal_graphs_of_other_data_compile_nothing(device: str) -> None:
    def run_it(seed: int) -> None:
        x = reshape(upload(np.full(21, seed, np.float32), data(0, 1).dtype, device), (3, 7))
        root = reduce_axes(elementwise(Ops.MUL, x, x) + 3.5, Ops.ADD, (1,))
        realize([root])
        np.testing.assert_array_equal(download(root), np.full(3, 7 * (seed * seed + 3.5), np.float32))

    run_it(1)
    before = counters.compiled
    for seed in range(2, 6):
        run_it(seed)
    assert counters.compiled == before


def test_a_written_schedule_replaces_the_heuristic(tmp_path: Path) -> None:
    (kernel,) = kernels(scheduled(data(0, 64, 64) * 3.75))
    llvm = get_device("LLVM")
    (tmp_path / f"{kernel.name}.schedule").write_text("# mine\nsplit i0 8; thread i0\n")
    with Context(OVERRIDE=str(tmp_path)):
        written = render(llvm, kernel, given_actions(llvm, kernel))
    assert written.threads == 512
    assert written.source != render(llvm, kernel).source


def test_a_grid_is_for_devices_with_work_items(tmp_path: Path) -> None:
    (kernel,) = kernels(scheduled(data(0, 64) * 3.75))
    (tmp_path / f"{kernel.name}.schedule").write_text("grid i0")
    with (
        Context(OVERRIDE=str(tmp_path)),
        pytest.raises(CompileError, match="grid, local and share are for devices with work-items; LLVM has none"),
    ):
        build(get_device("LLVM"), kernel)


def test_groups_that_no_device_has_are_a_sentence(tmp_path: Path) -> None:
    (kernel,) = kernels(scheduled(matmul(data(0, 300, 64), data(1, 64, 300))))
    wrong = {
        "local i0 16; local i1 32; grid i0 i1": "a group of 512 work-items .* takes groups of 256",
        "unroll i0 16; local i0 16; stage 1 k0 i0.l i0.u; grid i0": "share 66560 bytes.* with 32768 bytes",
    }
    for schedule, message in wrong.items():
        (tmp_path / f"{kernel.name}.schedule").write_text(schedule)
        with Context(OVERRIDE=str(tmp_path), TARGET="gpu"), pytest.raises(CompileError, match=message):
            build(get_device("PYTHON"), kernel)


def test_a_written_schedule_that_does_not_fit_is_passed_over(tmp_path: Path) -> None:
    """It was an error. Now a sentence says why, and the kernel has the schedule that works."""
    (kernel,) = kernels(scheduled(data(0, 8, 8) * 3.75))
    llvm = get_device("LLVM")
    plain = build(llvm, kernel)
    wrong = {
        "split z9 8": f"schedule of {kernel.name}: split z9 8 does not fit: 'z9' is not a loop",
        "split i0 many": f"schedule of {kernel.name}: split i0 many does not fit: 'many' is not an integer",
        "divide i0 8": f"schedule of {kernel.name}: 'divide' is not an action",
    }
    for schedule, message in wrong.items():
        (tmp_path / f"{kernel.name}.schedule").write_text(schedule)
        with Context(OVERRIDE=str(tmp_path)), pytest.warns(match=f"OVERRIDE: {message}.* without the file"):
            assert build(llvm, kernel) is plain


# --- many at once ----------------------------------------------------------------------------------------------------
def many(first: int) -> list[Kernel]:
    """Six kernels that are new to this process."""
    return [kernels(scheduled(data(0, 5, 9) * (first + n + 0.125)))[0] for n in range(6)]


@pytest.mark.parametrize("setting", ["0", "1"])
def test_many_are_built_in_order(device: str, setting: str) -> None:
    opened = get_device(device)
    wanted = many(1000 + int(setting) * 100 + len(device) * 10)
    before = counters.compiled, counters.from_memory
    with Context(COMPILER_PROCESS=int(setting), CACHE="0"):
        found = build_all([(opened, kernel) for kernel in [*wanted, wanted[0]]])
    assert counters.compiled == before[0] + 6
    assert counters.from_memory == before[1] + 1
    assert found[0] is found[6]
    assert [build(opened, kernel) for kernel in wanted] != []
    assert len({id(program) for program in found}) == 6


def test_of_many_the_largest_are_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process is started before the first of them is lowered, and the last one to wait for is small."""
    found: list[str] = []
    device = get_device("NULL")

    def later(name: str, source: str) -> Callable[[], bytes]:
        found.append(name)
        return lambda: b""

    monkeypatch.setattr(device, "expect_many", lambda: found.append("started"))
    monkeypatch.setattr(device, "compile_later", later)
    larger = kernels(scheduled((data(0, 5, 9) * 5000.5 + 1.0) * data(1, 5, 9)))[0]
    wanted = many(5000)
    with Context(CACHE="0"):
        build_all([(device, kernel) for kernel in [*wanted, larger]])
    assert found == ["started", schedules.symbol(larger), *map(schedules.symbol, wanted)]


@pytest.mark.parametrize("process", [1, 2])
def test_who_expects_many_has_a_single_one_compiled_beside(process: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """COMPILER_PROCESS=2: a model's kernels come one or two at a time."""
    found: list[str] = []
    device = get_device("NULL")
    monkeypatch.setattr(device, "expect_many", lambda: found.append("started"))

    def later(name: str, source: str) -> Callable[[], bytes]:
        found.append("beside")
        return bytes

    monkeypatch.setattr(device, "compile_later", later)
    with Context(CACHE="0", COMPILER_PROCESS=process):
        build_all([(device, many(6000 + 10 * process)[0])])
        expect(data(0, 5, 9) + 1.0, ["NULL"])
    assert found == (["started", "beside", "started"] if process == 2 else [])


def test_the_compiling_process_gives_the_same_binaries(tmp_path: Path) -> None:
    llvm = get_device("LLVM")
    wanted = many(3000)
    stored = []
    for process in (0, 1):
        folder = tmp_path / str(process)
        counted = counters.compiled
        with Context(COMPILER_PROCESS=process, CACHE_DIR=str(folder), BEAM="" if process else 0):
            build_all([(llvm, kernel) for kernel in wanted])
        assert counters.compiled == counted + 6
        stored.append({path.name: path.read_bytes() for path in entries(folder)})
    assert stored[0] == stored[1]


def test_a_schedule_that_does_not_fit_stops_nobody(tmp_path: Path) -> None:
    wanted = many(4000)
    (tmp_path / f"{wanted[3].name}.schedule").write_text("split z9 8")
    with Context(OVERRIDE=str(tmp_path)), pytest.warns(match="'z9' is not a loop"):
        assert len(build_all([(get_device("LLVM"), kernel) for kernel in wanted])) == len(wanted)


def test_a_fault_of_the_heuristic_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's loops are left as they are, with a warning, which is an error in tests; as it is with CHECK=1."""
    (kernel,) = kernels(scheduled(data(0, 6, 8) * 2.0 + 3.0))

    def wrong(ast: UOp, target: Target) -> Schedule:
        plan = Schedule(ast)
        plan.add("unroll", "nowhere", 2)
        return plan

    monkeypatch.setattr(sys.modules["kernmill.compiler.pipeline"], "choose", wrong)
    device = get_device("LLVM")
    with pytest.warns(match=r"unroll nowhere 2 does not fit.* The heuristic chose it: please report that"):
        assert render(device, kernel).source == render(device, kernel, []).source
    with Context(CACHE="0"), pytest.warns(match="nowhere"):  # by the way of a user's program as well
        build(device, kernel)
    with Context(CHECK=1), pytest.raises(CompileError, match="nowhere"):
        render(device, kernel)
