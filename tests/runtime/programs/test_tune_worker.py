"""The worker: what is right, wrong, refused; data that stays inside what it points into; what is written over."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from kernmill.ir import CompileError, KernmillError, Ops, assign, dtypes, reduce_axes, reshape, take
from kernmill.runtime import kernel_text, tune_worker
from tests.compiler.kernels import data, kernels, matmul, scheduled, softmax


def bench(root: object, device: str, **how: object) -> tune_worker.Bench:
    made = kernels(scheduled(root, **how))  # type: ignore[arg-type]
    (kernel,) = made
    return tune_worker.Bench(kernel_text.kernel_from_text(kernel_text.kernel_to_text(kernel), device), "", "")


def test_a_candidate_is_compared_and_timed(device: str) -> None:
    made = bench(matmul(data(0, 12, 9), data(1, 9, 10)), device)
    assert made.reference[0].shape == (120,)
    answer = made.attempt("unroll i0 4; split k0 3")
    assert answer["ratio"] > 0
    assert answer["time_ns"] > 0
    a, b = (made.data[slot].reshape(shape) for slot, shape in ((1, (12, 9)), (2, (9, 10))))
    np.testing.assert_allclose(made.results(0).reshape(12, 10), a @ b, rtol=1e-4, atol=1e-5)


def test_what_does_not_fit_is_refused(device: str) -> None:
    made = bench(data(0, 8, 8) * 1.5, device)
    assert "'z9' is not a loop" in made.attempt("split z9 4")["refused"]


def test_a_wrong_result_is_no_candidate(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = bench(softmax(data(0, 6, 8)), device)
    made.reference[0] = made.reference[0] + 1
    with pytest.raises(KernmillError, match="is correct"):
        made.run_checked(made.call("split i0 3"))
    monkeypatch.setattr(tune_worker.Bench, "compare", lambda *_, **__: ([2.0], [1.0]))
    assert made.attempt("split i0 3")["ratio"] == 2.0, "slow: nobody will choose it"
    monkeypatch.setattr(tune_worker.Bench, "compare", lambda *_, **__: ([0.5], [1.0]))
    assert "is correct" in made.attempt("split i0 3")["wrong"]


def test_a_result_that_is_left_out_shows(device: str) -> None:
    made = bench(data(0, 4, 4) + 1.0, device)
    idle = made.best._replace(threads=0)
    if device == "LLVM":  # where no iteration of the parallel loop is no work at all
        with pytest.raises(KernmillError, match="is correct"):
            made.run_checked(made.call("thread i0")._replace(threads=0))
    assert idle.threads == 0


def test_what_is_written_over_is_put_back(device: str) -> None:
    made = bench(assign(data(0, 16), data(0, 16) * 2.0), device, in_place=(0,))
    assert made.in_place == [0]
    made.run_checked(made.best)
    made.run_checked(made.best)
    np.testing.assert_array_equal(made.results(0), made.data[0] * 2)


def test_positions_stay_inside(device: str) -> None:
    table, index = data(0, 5, 7), reshape(data(1, 3, dtype=dtypes.int64), (3,))
    made = bench(take(table, index, 1), device)
    (slot,) = (slot for slot, values in made.data.items() if values.dtype == np.int64)
    assert made.data[slot].max() < 7
    assert made.data[slot].min() >= 0


@pytest.mark.parametrize("name", ["bool", "uint8", "int64", "float16", "bfloat16", "float64"])
def test_every_dtype_has_values(device: str, name: str) -> None:
    dtype = next(d for d in dtypes.data if d.name == name)
    made = bench(reduce_axes(data(0, 4, 8, dtype=dtype), Ops.MAX, (1,)), device)
    assert made.attempt("split i0 2")["ratio"] > 0


def test_requests_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(tune_worker.main)  # runs in test_tune.py, in a process of its own


def test_a_slow_first_launch_does_not_end_a_candidates_turn() -> None:
    """Of a few candidates, one whose first launch took seven times as long was not timed again."""
    times = {"first": itertools.chain([700.0], itertools.repeat(100.0)), "other": itertools.repeat(120.0)}
    fake = SimpleNamespace(
        best="first", in_place=[], call=str, run_checked=print, busy_ns=lambda call, _: next(times[call])
    )
    answer = tune_worker.among(cast("tune_worker.Bench", fake), ["first", "other"])
    assert answer == {"cpu_ns": [100.0, 120.0], "best": 0, "wrong": {}}


def test_the_next_one_is_chosen_where_the_fastest_is_wrong() -> None:
    def check(call: str) -> None:
        if call == "wrong":
            raise CompileError("at [0] it has 5")

    times = {"first": 100.0, "wrong": 10.0, "right": 50.0}
    fake = SimpleNamespace(best="first", in_place=[], call=str, run_checked=check, busy_ns=lambda call, _: times[call])
    answer = tune_worker.among(cast("tune_worker.Bench", fake), [*times])
    assert (answer["best"], answer["wrong"]) == (2, {1: "at [0] it has 5"})
