"""Batches: order, shares of ranks, threads, and what goes wrong in them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from typing import Any

import numpy as np
import pytest

from kernmill import KernmillError, SettingError, ShapeError, Tensor, dist, dtypes
from kernmill.data import DataLoader
from tests.kernmill.against import only_on

on_device = only_on("LLVM")
X, Y = np.arange(20, dtype=np.float32).reshape(10, 2), np.arange(10)


class Squares:
    """Items with a length, some of which fail."""

    def __init__(self, bad: int = -1) -> None:
        self.bad = bad
        self.threads: set[str] = set()

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.threads.add(threading.current_thread().name)
        if index == self.bad:
            raise ValueError("the file ends early")
        return {"square": index * index, "name": f"n{index}", "half": index / 2, "row": np.full(2, index)}


def rows(loader: Any) -> list[list[int]]:
    return [y.tolist() for _, y in loader]


@pytest.mark.parametrize("workers", [0, 3])
def test_batches_of_arrays(workers: int) -> None:
    loader = DataLoader((X, Tensor(Y)), 4, workers=workers)
    found = list(loader)
    assert len(loader) == len(found) == 3
    np.testing.assert_array_equal(np.concatenate([x.numpy() for x, _ in found]), X)
    assert rows(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert rows(DataLoader((X, Y), 4, drop_last=True, workers=workers)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert next(iter(DataLoader({"x": X, "y": Y}, 4, workers=workers)))["y"].tolist() == [0, 1, 2, 3]
    assert next(iter(DataLoader(X, 4))).shape == (4, 2)


def test_the_seed_and_the_pass_decide_the_order() -> None:
    first, again = (DataLoader((X, Y), 10, shuffle=True, seed=3, workers=n) for n in (0, 2))
    passes = [rows(first), rows(first)]
    assert passes == [rows(again), rows(again)]
    assert passes[0] != passes[1]
    assert [sorted(one[0]) for one in passes] == [list(range(10))] * 2
    later = DataLoader((X, Y), 10, shuffle=True, seed=3)
    later.epoch = 1
    assert rows(later) == passes[1]
    assert rows(DataLoader((X, Y), 10, shuffle=True, seed=4)) != passes[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_items_are_stacked(workers: int) -> None:
    data = Squares()
    batch = next(iter(DataLoader(data, 3, workers=workers)))
    assert batch["square"].tolist() == [0, 1, 4]
    assert (batch["square"].dtype, batch["half"].dtype) == (dtypes.int64, dtypes.float32)
    assert batch["name"] == ["n0", "n1", "n2"]
    assert batch["row"].shape == (3, 2)
    assert {"DataLoader"} >= data.threads if workers else {"MainThread"} == data.threads
    counts = DataLoader(data, 4, collate=len, workers=workers)
    assert list(counts) == [4, 4, 2]


def test_ranks_have_equal_shares() -> None:
    parts = [rows(DataLoader((X, Y), 2, shuffle=True, share=(rank, 3))) for rank in range(3)]
    assert [len(part) for part in parts] == [2, 2, 2] == [len(DataLoader((X, Y), 2, share=(0, 3)))] * 3
    seen = [index for part in parts for batch in part for index in batch]
    assert len(seen) == len(set(seen)) == 9

    def of_rank(ranks: dist.Communicator) -> Any:
        with dist.use(ranks):
            return rows(DataLoader((X, Y), 5))

    assert dist.run_threads(2, of_rank) == [[[0, 2, 4, 6, 8]], [[1, 3, 5, 7, 9]]]


@pytest.mark.parametrize("workers", [0, 3])
def test_errors_of_items_are_raised_in_the_loop(workers: int) -> None:
    batches = iter(DataLoader(Squares(bad=7), 2, workers=workers))
    assert [len(next(batches)["name"]) for _ in range(3)] == [2, 2, 2]
    with pytest.raises(KernmillError, match=r"^DataLoader: item 7 of the dataset could not be loaded: ValueError: the"):
        next(batches)
    ragged: Any = DataLoader([(np.zeros(2), 0), (np.zeros(3), 0)], 2, workers=workers)
    with pytest.raises(ShapeError, match=r"^DataLoader: items of shapes \(2,\), \(3,\) in one batch. Make them equal"):
        list(ragged)


def test_threads_end_with_the_loop() -> None:
    for batch in DataLoader(Squares(), 1, workers=3):
        assert batch["square"].tolist() == [0]
        break
    for thread in threading.enumerate():
        if thread.name == "DataLoader":
            thread.join(5)
            assert not thread.is_alive()


def test_ctrl_c_ends_a_program_whose_items_hang() -> None:
    program = """
        import _thread, signal, threading
        from kernmill.data import DataLoader

        class Hangs:
            def __len__(self):
                return 4

            def __getitem__(self, index):
                threading.Timer(0.2, _thread.interrupt_main).start()
                threading.Event().wait()

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in the background
        try:
            list(DataLoader(Hangs(), 2, workers=2))
        except KeyboardInterrupt:
            print("stopped")
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.stdout == "stopped\n", run.stderr


def test_mistakes() -> None:
    calls: tuple[tuple[Any, type[Exception], str], ...] = (
        (lambda: DataLoader(X, 0), SettingError, r"^DataLoader: batch_size=0. Give an integer, 1 or more."),
        (lambda: DataLoader(X, workers=-1), SettingError, r"^DataLoader: workers=-1. Give an integer, 0 or more."),
        (lambda: DataLoader(3), SettingError, r"^DataLoader: a int has no length or no items. Give arrays"),
        (lambda: DataLoader((X, Y[:3])), ShapeError, r"^DataLoader: arrays of lengths 3, 10. Give equal ones."),
    )
    for call, error, text in calls:
        with pytest.raises(error, match=text):
            call()
