"""Records of candidates: those of a search are kept, the shorter time of two, and damage is no error."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernmill.ir import Context, Kernel
from kernmill.runtime import Candidate, compile_cache, get_device, recorded_candidates, store_candidates, tune_kernel
from tests.compiler.kernels import data, kernels, matmul, scheduled


@pytest.fixture(autouse=True)
def on_device() -> None:
    """One device is enough."""


@pytest.fixture
def kernel() -> Kernel:
    (made,) = kernels(scheduled(matmul(data(0, 24, 20), data(1, 20, 32))))
    return made


def test_a_search_records_what_it_measures(kernel: Kernel, tmp_path: Path) -> None:
    llvm = get_device("LLVM")
    with Context(CACHE_DIR=str(tmp_path), THREADS=1):
        found = tune_kernel(llvm, kernel, width=2, seconds=1)
        kept = recorded_candidates(llvm, kernel)
        assert {one.schedule for one in kept} == {one.schedule for one in found.measured}
        assert all(0 < one.cpu_ns < 1e9 for one in kept)
    with Context(CACHE_DIR=str(tmp_path), THREADS=2):
        assert recorded_candidates(llvm, kernel) == [], "times of another number of threads"


def test_the_shorter_time_is_kept(kernel: Kernel, tmp_path: Path) -> None:
    llvm = get_device("LLVM")
    with Context(CACHE_DIR=str(tmp_path)):
        store_candidates(llvm, kernel, [Candidate("unroll i0 2", 9.0), Candidate("", 5.0)])
        store_candidates(llvm, kernel, [Candidate("unroll i0 2", 7.0), Candidate("", 6.0)])
        assert sorted(recorded_candidates(llvm, kernel)) == [("", 5.0), ("unroll i0 2", 7.0)]


def test_a_damaged_entry_is_none(kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llvm = get_device("LLVM")
    entry = compile_cache.CacheEntry({}, b'["unroll i0 2"]\nnonsense')
    with Context(CACHE_DIR=str(tmp_path)):
        monkeypatch.setattr(compile_cache.CompileCache, "get", lambda *_: entry)
        assert recorded_candidates(llvm, kernel) == []
