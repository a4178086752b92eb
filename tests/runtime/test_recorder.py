"""What a recorder has after programs ran: launches with their clock, spans, notes, own lines of equal graphs."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from kernmill import Context, Tensor, Variable, jit
from kernmill.runtime import Recorder, families, plan, recorder, recording_profile


@pytest.fixture(autouse=True)
def exact() -> None:
    """No plan is known: a graph of another size would get kernels for all sizes."""
    plan.plans.clear()
    families.families.clear()


def names(found: Recorder) -> list[str]:
    return [kernel.name for ran in found.ran.values() for kernel in ran.kernels]


def test_nothing_is_recorded_outside() -> None:
    with recording_profile() as found:
        pass
    (Tensor([1.0, 2.0]) + 1).realize()
    assert recorder.active is None
    assert not found.ran
    assert not found.spans


def test_launches_have_a_clock_within_the_block(device: str) -> None:
    x = Tensor(np.ones((4, 33), np.float32), device=device).realize()
    before = time.perf_counter_ns()
    with recording_profile() as found:
        for _ in range(3):
            (x * 2).sum(1).numpy()
    after = time.perf_counter_ns()
    (ran,) = found.ran.values()
    assert (ran.device, len(ran.runs)) == (device, 3)
    for _, clock, _ in ran.runs:
        assert before <= clock[0] <= clock[-1] <= after
        assert [*clock] == sorted(clock)


def test_replays_are_recorded(device: str) -> None:
    f = jit(lambda x: (x @ x).exp().sum())
    x = Tensor(np.ones((8, 8), np.float32), device=device).realize()
    with recording_profile() as found:
        for _ in range(6):
            f(x).realize()
    assert sum(len(ran.runs) for ran in found.ran.values()) == 6
    assert [note.reason for note in found.notes if note.kind == "capture"] == ["the first capture"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda f, x: f(x[:2].contiguous(), 1), "the shape of x changed from (4, 4) to (2, 4)"),
        (lambda f, x: f(x, 2), "a plain argument changed from 1 to 2"),
        (lambda f, x: f(x.int(), 1), "the dtype of x changed from float32 to int32"),
    ],
)
def test_a_new_capture_has_a_reason(change: object, reason: str) -> None:
    f = jit(lambda x, n: (x * n).sum())
    x = Tensor(np.ones((4, 4), np.float32)).realize()
    with recording_profile() as found:
        f(x, 1), f(x, 1)
        change(f, x)  # type: ignore[operator]
    assert [note.reason for note in found.notes if note.kind == "capture"][-1] == reason


def test_equal_graphs_of_two_lines_have_their_own_lines() -> None:
    """They share a plan, and both had the line of the first."""
    x = Tensor(np.ones(37, np.float32)).realize()
    with recording_profile() as found:
        (x + 1.5).realize()
        (x + 1.5).realize()
    first, second = found.ran.values()
    assert first.kernels == second.kernels
    assert first.lines != second.lines


def test_an_inner_block_is_part_of_the_outer_one() -> None:
    x = Tensor(np.ones(39, np.float32)).realize()
    with recording_profile() as outer:
        (x + 1).realize()
        with recording_profile() as inner:
            (x * 3).sum().realize()
    assert names(inner) == ["sum_1_k39"]
    assert sorted(names(outer)) == ["map_39", "sum_1_k39"]
    assert all(ran.uses for ran in outer.ran.values())


def test_compiling_and_copies_are_spans() -> None:
    with Context(CACHE="0"), recording_profile() as found:
        (Tensor(np.ones(41, np.float32)).exp() + 0.123).numpy()
    assert {"plan", "compile", "copy", "wait"} <= {span.kind for span in found.spans}
    assert all(span.start_ns <= span.end_ns for span in found.spans)
    assert {span.nbytes for span in found.spans if span.kind == "copy"} == {164}


def test_after_many_runs_times_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_MOST_RUNS", 2)
    x = Tensor(np.ones(43, np.float32)).realize()
    with recording_profile() as found:
        for _ in range(5):
            (x + 1).realize()
    (ran,) = found.ran.values()
    assert (len(ran.runs), ran.more, len(ran.more_ns)) == (2, 3, 1)
    assert ran.more_ns[0] > 0


def test_a_replay_of_one_batch_is_recorded_by_its_straight_line_code() -> None:
    """Rows of a tape: more than there is room for at first, by two threads, and none of them after the end."""
    f = jit(lambda x: (x * 2).sum(1))
    x = Tensor(np.ones((3, 5), np.float32)).realize()
    for _ in range(3):
        f(x)
    with recording_profile() as found:
        for _ in range(40):
            f(x)
        thread = threading.Thread(target=f, args=(x,))
        thread.start()
        thread.join()
    f(x)
    (ran,) = found.ran.values()
    assert len(found.tapes) == 1
    assert [number for number, _, _ in ran.runs].count(threading.get_ident()) == 40
    assert len(ran.runs) == 41
    ends = [clock for _, clock, _ in ran.runs]
    assert all(found.start_ns <= first[0] <= first[1] <= found.end_ns for first in ends)
    assert ends == sorted(ends, key=tuple)


def test_runs_of_a_size_that_changes_have_their_values() -> None:
    n = Variable("n", 1, 8)
    f = jit(lambda x: x.sum())
    x = Tensor(np.ones(8, np.float32)).realize()
    for _ in range(2):
        f(x[: n.bind(2)])
    with recording_profile() as found:
        for size in (3, 3, 5):
            f(x[: n.bind(size)])
    values = [given for ran in found.ran.values() for _, _, given in ran.runs if given]
    assert [[*given.values()] for given in values] == [[3], [3], [5]]
