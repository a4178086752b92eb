"""Which schedule a kernel gets: OVERRIDE if it fits, before what a search stored, before the heuristic; BEAM=0 passes
the second."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernmill.compiler import parse_schedule, show_schedule
from kernmill.ir import Context, Kernel, SettingError
from kernmill.runtime import build, counters, get_device, schedules
from tests.compiler.kernels import data, kernels, scheduled

FOUND = parse_schedule("vectorize i0 8; unroll i0 2")


@pytest.fixture(autouse=True)
def on_device() -> None:
    """The files are the same for every device."""


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    (made,) = kernels(scheduled(data(0, 32, 64) * 3.5 + 1.25))
    return made


def test_what_was_stored_is_used(kernel: Kernel, tmp_path: Path) -> None:
    llvm = get_device("LLVM")
    with Context(CACHE_DIR=str(tmp_path / "cache")):
        assert schedules.given_schedule(llvm, kernel) is None, "the heuristic's"
        schedules.store_schedule(llvm, kernel, show_schedule(FOUND), {"time_ns": 5})
        assert schedules.stored_schedule(llvm, kernel) == show_schedule(FOUND)
        assert schedules.given_schedule(llvm, kernel) == show_schedule(FOUND)
        with Context(BEAM=0):
            assert schedules.given_schedule(llvm, kernel) is None
        (tmp_path / f"{kernel.name}.schedule").write_text("thread i0")
        with Context(OVERRIDE=str(tmp_path)):
            assert schedules.given_schedule(llvm, kernel) == "thread i0"
        assert schedules.stored_schedule(get_device("PYTHON"), kernel) is None, "of another target"


def test_programs_follow_what_is_stored(kernel: Kernel, tmp_path: Path) -> None:
    llvm = get_device("LLVM")
    with Context(CACHE_DIR=str(tmp_path / "cache")):
        schedules.store_schedule(llvm, kernel, show_schedule(FOUND), {})
        before = counters.compiled
        with Context(BEAM=0):
            plain = build(llvm, kernel)
        found = build(llvm, kernel)
        assert counters.compiled == before + 2
        assert plain is not found
        assert plain.threads > 1
        assert found.threads == 1, "this schedule names no thread loop"


def test_without_a_cache_nothing_is_stored(kernel: Kernel) -> None:
    llvm = get_device("LLVM")
    with Context(CACHE="0"):
        schedules.store_schedule(llvm, kernel, show_schedule(FOUND), {})
        assert schedules.stored_schedule(llvm, kernel) is None


def test_a_folder_that_is_not_there(kernel: Kernel, tmp_path: Path) -> None:
    """A misspelt OVERRIDE was passed over without a word: the heuristic's schedules were measured instead."""
    with Context(OVERRIDE=str(tmp_path / "nowhere")), pytest.raises(SettingError) as caught:
        schedules.written_schedule(get_device("LLVM"), kernel)
    assert str(caught.value) == (
        f"OVERRIDE: {tmp_path / 'nowhere'} is not a folder. Give a folder with <kernel>.schedule files."
    )
    with Context(OVERRIDE=str(tmp_path)):
        assert schedules.written_schedule(get_device("LLVM"), kernel) is None, "no file for this one"
    (file := tmp_path / "file").write_text("split i0 8")
    with Context(OVERRIDE=str(file)), pytest.raises(SettingError, match="file is not a folder"):
        schedules.written_schedule(get_device("LLVM"), kernel)


def test_a_file_that_is_no_text(kernel: Kernel, tmp_path: Path) -> None:
    (tmp_path / f"{kernel.name}.schedule").write_bytes(b"\xff\xfe")
    with Context(OVERRIDE=str(tmp_path)), pytest.warns(match="schedule cannot be read as text .* without the file"):
        assert schedules.given_schedule(get_device("LLVM"), kernel) is None


def test_the_stamp_tells_files_of_one_name_apart_and_versions(tmp_path: Path) -> None:
    paths = [line.split()[0] for line in schedules.stamp().splitlines()]
    assert len(set(paths)) == len(paths)
    assert {str(Path("ir", "__init__.py")), str(Path("compiler", "optimize", "__init__.py"))} < set(paths)
    for name in ("kernmill", "kernmill-0.1.0.dist-info", "kernmillion-2.dist-info", "numpy-2.0.dist-info"):
        (tmp_path / name).mkdir()
    assert schedules._installed(str(tmp_path / "kernmill")) == ["kernmill-0.1.0.dist-info"]
    assert schedules._installed(str(tmp_path / "gone" / "kernmill")) == []
