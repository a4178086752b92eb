"""The benchmark's arithmetic and its table; and that every row is right at a tiny size. Nothing is timed here."""

from __future__ import annotations

import ctypes
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench import sizes
from bench.__main__ import as_json, chosen_peers, chosen_rows, main, thread_counts
from bench.block import is_right, problem, with_arrays
from bench.ceilings import Probe, ceiling_sampler, lanes, memory, texts
from bench.expression import Expression, Form, check, contiguous_bf16, forms_of, prepare_expression
from bench.figures import Spread, digits, ratios, ratios_to, show_bytes, show_ratio, show_seconds, spread
from bench.hog_rows import Beside, Hog
from bench.machine import machine, machine_line
from bench.measure import ROWS, judged, measure_all, measure_row
from bench.models import MODELS, Model, reference_losses
from bench.peers import PEERS, installed, missing
from bench.row import Goal, Outcome, Prepared, Row, Setup, WrongResult, take_off
from bench.table import markdown
from bench.timing import call_sampler, calls_for, interleave
from bench.tuned import Line, kernels_of, lines_of
from bench.tuned import markdown as tuned_markdown
from tests.conftest import why_missing
from tools.results_page import results

TINY = Setup(peers=("kernmill",), rounds=2, sample_s=0.0, tiny=True)
FACTS = {**machine(), "rounds": 2, "jit": True}


@pytest.mark.parametrize("command", [["-m", "bench", "--list"], ["tools/size.py"]], ids=str)
def test_a_reader_that_leaves_early_is_no_fault(command: list[str]) -> None:
    """`python -m bench --list | head` ended in a BrokenPipeError and a traceback."""
    command = [sys.executable, *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode in (141, -signal.SIGPIPE)


def test_the_profile_of_a_first_call_knows_the_phases() -> None:
    """Its table of functions still had the name of one that had been renamed, and the tool ended in a traceback."""
    command = [sys.executable, "tools/profile_compile.py", "--child", "matmul"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(run.stdout.splitlines()[-1])
    assert {"walk the graph", "find the plan", "lower", "LLVM", "render"} <= set(found["phases"])


# --- figures ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 10])
def test_spread_is_numpys_quantile(count: int) -> None:
    samples = np.random.default_rng(count).random(count).tolist()
    found = spread(samples)
    assert [found.low, found.median, found.high] == pytest.approx(np.quantile(samples, [0.25, 0.5, 0.75]).tolist())


def test_spread_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no samples"):
        spread([])


def test_ratios_are_taken_round_by_round() -> None:
    # the machine was ten times slower in the second round: the ratio does not care
    assert ratios([2.0, 20.0, 2.0], [1.0, 10.0, 1.0]) == Spread(2.0, 2.0, 2.0)
    assert ratios([1.0, 2.0, 6.0], [2.0, 2.0, 2.0]).median == 1.0
    with pytest.raises(ValueError, match="zip"):
        ratios([1.0], [1.0, 2.0])


def test_ratios_to_who_took_part_in_the_first_rounds_only() -> None:
    assert ratios_to([4.0], [2.0, 1.0, 1.0]) == Spread(2.0, 2.0, 2.0)


def test_the_baseline_is_taken_off_its_own_round() -> None:
    assert take_off({"python": [1.0, 2.0], "kernmill": [1.5, 2.25]}, "python") == {"kernmill": [0.5, 0.25]}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2.0, "2.00 s"),
        (0.0123, "12.3 ms"),
        (1e-3, "1.00 ms"),
        (4.567e-5, "45.7 us"),
        (3.2e-9, "3.20 ns"),
        (-0.5, "-500 ms"),
    ],
)
def test_seconds(seconds: float, text: str) -> None:
    assert show_seconds(seconds) == text


def test_bytes_and_ratios() -> None:
    assert [show_bytes(n) for n in (12, 1.5e3, 2e6, 3.25e9)] == ["12 B", "1.50 kB", "2.00 MB", "3.25 GB"]
    assert [digits(v) for v in (0.123, 1.234, 12.34, 123.4)] == ["0.12", "1.23", "12.3", "123"]
    assert show_ratio(Spread(2.0, 1.5, 2.5)) == "**2.00** (1.50-2.50)"
    assert show_ratio(Spread(2.0, 2.0, 2.001)) == "**2.00**"


# --- samples ---------------------------------------------------------------------------------------------------------
def test_samples_are_interleaved_and_the_warm_up_is_dropped() -> None:
    seen: list[str] = []

    def sampler(name: str) -> Callable[[], float]:
        values = itertools.count()

        def sample() -> float:
            seen.append(name)
            return float(next(values))

        return sample

    found = interleave({"a": sampler("a"), "b": sampler("b"), "c": sampler("c")}, rounds=2, warm_up=1)
    assert "".join(seen) == "abc" * 3
    assert found == {"a": [1.0, 2.0], "b": [1.0, 2.0], "c": [1.0, 2.0]}


def test_who_is_slow_takes_part_in_fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("bench.timing.time.perf_counter", lambda: clock[0])

    def sampler(seconds: float) -> Callable[[], float]:
        def sample() -> float:
            clock[0] += seconds
            return seconds

        return sample

    found = interleave({"quick": sampler(0.1), "slow": sampler(2.0), "very slow": sampler(20.0)}, rounds=5)
    assert {name: len(values) for name, values in found.items()} == {"quick": 5, "slow": 3, "very slow": 1}


def test_a_row_that_takes_long_ends_after_five_rounds() -> None:
    assert len(interleave({"a": lambda: 1.0}, rounds=9, most_s=-1.0)["a"]) == 5
    assert len(interleave({"a": lambda: 1.0}, rounds=3, most_s=-1.0)["a"]) == 3


def test_short_calls_are_repeated_within_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.timing.timed", lambda call, count, clock: count * 1e-6)
    count, spent = calls_for(lambda: None, 1e-3)
    assert 1000 <= count <= 1500
    assert spent == count * 1e-6
    assert calls_for(lambda: None, 0.0)[0] == 1
    assert call_sampler(lambda: None, 1e-3, threads=1, units=10)() == pytest.approx(1e-7)


# --- ceilings --------------------------------------------------------------------------------------------------------
def test_the_arithmetic_loop_multiplies_what_it_is_given() -> None:
    probe = Probe("fma", texts("fma")[0], 1)
    rows, columns, steps = 6, 4 if lanes() == 16 else 2, 48
    operands, result = (memory(name, 0, 1 << 16) for name in ("operands", "result"))
    view = np.ctypeslib.as_array((ctypes.c_float * (1 << 14)).from_address(operands))
    view[:] = np.random.default_rng(1).random(1 << 14, np.float32)
    probe.run(operands, result, 2)
    width = columns * lanes()
    right = view[steps * width :][: steps * rows].reshape(steps, rows).T @ view[: steps * width].reshape(steps, width)
    found = np.ctypeslib.as_array((ctypes.c_float * (rows * width)).from_address(result)).reshape(rows, width)
    np.testing.assert_allclose(found, 2 * right, rtol=1e-4)


@pytest.mark.parametrize("text", texts("copy"))
def test_the_copying_loops_copy(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.ceilings._BUFFER_BYTES", 1 << 14)
    probe = Probe("copy", text, 1)
    source, target = np.arange(3 << 12, dtype=np.int32), np.zeros(3 << 12, np.int32)
    start = -source.ctypes.data % 64 // 4, -target.ctypes.data % 64 // 4
    probe.run(source[start[0] :].ctypes.data, target[start[1] :].ctypes.data, probe.count)
    assert (target[start[1] :][: 1 << 12] == source[start[0] :][: 1 << 12]).all()
    assert (target[start[1] :][1 << 12 :] == 0).all()


def test_a_ceiling_is_seconds_of_the_given_work() -> None:
    sampler, note = ceiling_sampler("fma", 1e9, 0.001, 2)
    assert sampler is not None
    assert note == ""
    assert 1e-4 < sampler() < 10


# --- results ---------------------------------------------------------------------------------------------------------
def test_a_wrong_result_is_found() -> None:
    right = np.array([1.0, 2.0, 4.0])
    check("x", right.astype(np.float32), right, 1e-6)
    check("x", np.array([3, 1]), np.array([3, 1]), 0.0)
    with pytest.raises(WrongResult, match=r"1 of 3 values wrong, at \(1,\) 2.1 instead of 2.0"):
        check("x", np.array([1.0, 2.1, 4.0]), right, 1e-3)
    with pytest.raises(WrongResult, match=r"1 of 3 values wrong, at \(2,\) nan"):
        check("x", np.array([1.0, 2.0, np.nan]), right, 1e-3)
    with pytest.raises(WrongResult, match="shape"):
        check("x", right[:2], right, 1e-3)
    with pytest.raises(WrongResult, match="1 of 2"):
        check("x", np.array([3, 2]), np.array([3, 1]), 0.0)


def test_halves_are_rounded_to_even() -> None:
    given = np.array([1.0, 1.0 + 2**-8, 1.0 + 3 * 2**-8, -1.0 - 2**-7, 3.0e38], np.float32)
    assert contiguous_bf16(given)[:4].tolist() == [1.0, 1.0, 1.0 + 2**-6, -1.0 - 2**-7]


@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_the_training_reference_learns(model: Model) -> None:
    losses = reference_losses(model, batch=2, steps=3)
    assert losses[0] == pytest.approx(np.log(10), abs=1.0)
    assert losses[2] < losses[1] < losses[0]


def test_a_wrong_gradient_of_the_block_is_found() -> None:
    params, x = problem(4, 32)
    wide = [p.astype(np.float64) for p in params]
    forward = with_arrays(np, wide, x.astype(np.float64))
    assert is_right(params, x, [forward], is_gradient=False)
    assert not is_right(params, x, [forward + 0.1], is_gradient=False)
    loss = np.square(forward).mean()
    assert not is_right(params, x, [loss, *(np.ones_like(p) for p in params)], is_gradient=True)


IN_A_PROCESS = {"import", "first_cold", "first_warm"}
NOT_IN_PROCESS = {row.name for row in ROWS if row.name.startswith(("block_", "first_")) or row.name.endswith("_memory")}


def close(prepared: Prepared) -> None:
    if prepared.close:
        prepared.close()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_kernmill_is_right_at_a_tiny_size(row: Row) -> None:
    if row.name.endswith("_memory") and not sys.platform.startswith("linux"):
        pytest.skip("reads /proc")
    if row.name.startswith("opencl_") and why_missing("CL"):
        assert not row.prepare(TINY).samplers
        pytest.skip(why_missing("CL"))
    setup = replace(TINY, peers=("kernmill", "opencl")) if row.name.startswith("opencl_") else TINY
    prepared = row.prepare(setup)  # compares with the reference
    close(prepared)
    assert "kernmill" in prepared.samplers


@pytest.mark.parametrize("row", [row for row in ROWS if row.name not in NOT_IN_PROCESS], ids=lambda row: row.name)
def test_numpy_is_right_at_a_tiny_size(row: Row) -> None:
    close(row.prepare(Setup(peers=("numpy",), tiny=True)))


@pytest.mark.parametrize("peer", [name for name in PEERS if name not in ("kernmill", "numpy", "torch.compile")])
def test_the_other_peers_are_right_at_a_tiny_size(peer: str) -> None:
    if not installed(peer):
        pytest.skip(f"not installed: {missing(peer)}")
    PEERS[peer].use_threads(1)
    for row in ROWS:  # torch.compile runs torch's words
        if row.name not in NOT_IN_PROCESS | IN_A_PROCESS:
            close(row.prepare(Setup(peers=(peer,), tiny=True)))


def test_names_are_unique() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)


# --- one row ---------------------------------------------------------------------------------------------------------
def fixed(values: dict[str, float], **more: object) -> Row:
    def prepare(_: Setup) -> Prepared:
        samplers = {name: lambda value=value: value for name, value in values.items()}
        return Prepared(samplers, work=2e9, notes=lambda: ["a note"])

    return Row("made_up", "made up", prepare, **more)  # type: ignore[arg-type]


def test_a_row_is_measured_and_judged() -> None:
    row = fixed({"kernmill": 0.5, "torch": 2.0}, rate="GFLOP/s", goals=(Goal("torch", 3.0), Goal("numpy", 1.0)))
    outcome = measure_row(row, TINY)
    assert outcome.samples == {"kernmill": [0.5, 0.5], "torch": [2.0, 2.0]}
    assert outcome.goals == [["3x torch", "met (4.00)"]]
    assert outcome.notes == ["a note"]
    assert measure_row(row, Setup(rounds=2, threads=3)).goals == []  # the goal is about one and two threads


def test_goals_name_who_was_best_and_what_is_missing() -> None:
    samples = {"kernmill": [1.0], "numpy": [2.0], "torch": [1.2], "ceiling": [0.5], "jax": []}
    row, prepared = fixed({}), Prepared({})
    assert judged(Goal("best", 1.5), row, prepared, samples) == ["1.5x best", "short by 20% (1.20, torch)"]
    assert judged(Goal("best", 1.1), row, prepared, samples) == ["1.1x best", "met (1.20, torch)"]
    assert judged(Goal("ceiling", 0.8), row, prepared, samples) == ["80% of the ceiling", "short by 38% (0.50)"]
    assert judged(Goal("jax", 1.1), row, prepared, samples) == []
    assert judged(Goal("best", 1.1), row, prepared, {"kernmill": [1.0], "ceiling": [0.5]}) == []


def test_a_peer_that_fails_is_left_out_and_the_row_goes_on() -> None:
    def broken(*_: object) -> object:
        raise ValueError("not today")

    work = Expression((3,), (3,), lambda rng, size: (rng.random(size, np.float32),), lambda x: x + 1,
                      {"kernmill": lambda _, x: x + 1, "numpy": broken}, lambda size: 3.0)  # fmt: skip
    prepared = prepare_expression(work, Setup(peers=("kernmill", "numpy")))
    assert list(prepared.samplers) == ["kernmill"]
    assert prepared.notes() == ["1 kernel", "numpy left out: ValueError: not today"]


def test_torch_compile_runs_torchs_first_form() -> None:
    form = Form(lambda *_: None, lambda _, x: (x,))
    work = Expression((3,), (3,), lambda rng, size: (), lambda x: x, {"torch": (form, len)}, lambda size: 3.0)
    assert forms_of(work, "torch.compile") == [form]
    assert len(forms_of(work, "torch")) == 2
    assert forms_of(work, "jax") == []


def test_what_is_opened_for_a_row_is_closed_when_it_fails() -> None:
    closed: list[bool] = []

    def fail() -> float:
        raise RuntimeError("no")

    row = Row("x", "x", lambda _: Prepared({"kernmill": fail}, close=lambda: closed.append(True)))
    assert measure_row(row, TINY).failed == "RuntimeError: no"
    assert closed == [True]


def test_no_row_is_begun_when_the_time_is_over() -> None:
    outcomes = measure_all([fixed({"kernmill": 1.0})], TINY, limit_s=-1)
    assert outcomes[0].failed.startswith("not begun")


def test_the_hog_ends_when_it_is_told_to() -> None:
    hog = Hog()
    assert hog.process.poll() is None
    hog.close()
    assert hog.process.poll() is not None


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system how long another process has run")
def test_a_hogs_share_of_a_core_is_counted() -> None:
    hog = Hog()
    try:
        before = hog.cpu_s()
        limit = time.monotonic() + 20
        while hog.cpu_s() < before + 0.01:
            assert time.monotonic() < limit
    finally:
        hog.close()


def test_a_sample_in_which_the_hog_did_not_run_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of our own: in each sample of a second the hog has so much of a core."""
    beside, had, now = Beside(), iter([0.1, 0.5, 0.0, 0.1, 0.2, 0.9]), [0.0, 0.0]

    def plain(*_: object, **options: Any) -> Callable[[], float]:
        def sample() -> float:
            options["clock"]()
            now[0], now[1] = now[0] + 1, now[1] + next(had)
            return float(options["clock"]())

        return sample

    monkeypatch.setattr("bench.hog_rows.call_sampler", plain)
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    beside.hog = SimpleNamespace(cpu_s=lambda: now[1])  # type: ignore[assignment]
    sample = beside.sampler("kernmill", lambda: None, TINY)
    assert [sample() for _ in range(3)] == [2, 5, 6]
    assert beside.shares["kernmill"] == pytest.approx([0.5, 0.2, 0.9])
    assert beside.again == 3
    assert beside.notes()[0].startswith("the other process had of a core 50% beside kernmill; ")


def test_limits_are_judged_after_the_baseline_is_taken_off() -> None:
    row = fixed({"python": 0.25, "kernmill": 0.375}, baseline="python", goals=(Goal(limit=0.15),))
    assert measure_row(row, TINY).goals == [["under 150 ms", "met (125 ms)"]]
    prepared = Prepared({}, measured=lambda samples: 0.2)
    found = judged(Goal(limit=0.15), row, prepared, {"kernmill": [0.1]})
    assert found == ["under 150 ms", "short: 1.33x as long (200 ms)"]


def test_a_row_that_fails_has_no_times() -> None:
    def prepare(_: Setup) -> Prepared:
        raise WrongResult("torch: the product is wrong\nmore")

    outcome = measure_row(Row("bad", "bad", prepare), TINY)
    assert (outcome.samples, outcome.failed) == ({}, "WrongResult: torch: the product is wrong")


# --- table -----------------------------------------------------------------------------------------------------------
OUTCOMES = [
    Outcome(
        "a",
        "the first",
        1,
        "GFLOP/s",
        "s",
        2e9,
        {"kernmill": [0.5, 0.5], "torch": [1.0, 1.0]},
        ["1 kernel"],
        goals=[["1x torch", "met (2.00)"], ["3x best", "short by 33% (2.00, torch)"]],
    ),
    Outcome("a", "the first", 2, "GFLOP/s", "s", 2e9, {"kernmill": [0.25, 0.25], "numpy": [0.5, 0.5]}),
    Outcome("b", "the second", 1, failed="WrongResult: no"),
]
TABLE = """
| row | threads | kernmill | rate | torch: time, x | numpy: time, x | goal | met |
| --- | --: | --: | --: | --: | --: | --- | --- |
| a | 1 | 500 ms (500 ms-500 ms) | 4.00 GFLOP/s | 1.00 s, **2.00** |  | 1x torch; 3x best | met (2.00); short by 33% (2.00, torch) |
| a | 2 | 250 ms (250 ms-250 ms) | 8.00 GFLOP/s |  | 500 ms, **2.00** |  |  |

* `a`: the first. 1 thread: 1 kernel.
* `b`: the second.

Failed, hence not timed:

* **b**, 1 thread: WrongResult: no
"""  # noqa: E501


def test_the_table() -> None:
    text = markdown(FACTS, OUTCOMES)
    assert text.endswith(TABLE)
    assert text.startswith(machine_line(FACTS))


def test_the_table_says_who_is_missing() -> None:
    assert "not installed: jax (jax)." in markdown({**FACTS, "missing": {"jax": "jax"}}, OUTCOMES)


def test_the_table_says_when_nothing_was_captured() -> None:
    assert "without jit" in markdown({**FACTS, "jit": False}, OUTCOMES)
    assert "without jit" not in markdown(FACTS, OUTCOMES)


def test_json_holds_every_sample() -> None:
    kept = json.loads(as_json(FACTS, OUTCOMES))
    assert [Outcome(**row) for row in kept["rows"]] == OUTCOMES
    assert kept["machine"]["versions"]["numpy"] == np.__version__


# --- results ---------------------------------------------------------------------------------------------------------
def test_every_kind_of_result_has_a_section(tmp_path: Path) -> None:
    facts = {**machine(), "seconds": 1.0, "threads": "1", "when": "2026-01-02 03:04 UTC", "commit": "abc"}
    kernels = [asdict(Line("row", "sum_8", 2e-6, 1e-6, 3, 0, "unroll i0 4"))]
    table = {
        "title": "T",
        "about": "A.",
        "machine": facts,
        "columns": ["row", "torch: time, x"],
        "rows": [["a", "2 us, **1.50** (1-2)"]],
    }
    (tmp_path / "a.json").write_text(as_json({**facts, "rounds": 2, "jit": True}, OUTCOMES))
    (tmp_path / "b.json").write_text(json.dumps({"machine": facts, "kernels": kernels}))
    (tmp_path / "c.json").write_text(json.dumps(table))
    page = results(tmp_path)
    assert [line for line in page.splitlines() if line.startswith("## ")] == [
        "## T: c", "## `python -m bench.tuned`: b", "## `python -m bench`: a",
    ]  # fmt: skip
    assert "| a | 1.50 |" in page
    assert "| row | sum_8 | 2.00 us | 1.00 us | 2.00 | 3 | `unroll i0 4` |" in page
    assert "2026-01-02 03:04 UTC, commit abc" in page


# --- command line ----------------------------------------------------------------------------------------------------
def test_choosing() -> None:
    assert [row.name for row in chosen_rows(["sum", "matmul_5*"])] == ["matmul_512", "sum"]
    assert chosen_rows([]) == ROWS
    assert chosen_peers("numpy") == ("kernmill", "numpy")
    assert ("torch" in chosen_peers("torch,kernmill")) == installed("torch")
    assert thread_counts("2,1,2") == [2, 1]
    for call in (lambda: chosen_rows(["nope"]), lambda: chosen_peers("nope"), lambda: thread_counts("0")):
        with pytest.raises(SystemExit, match="bench: "):
            call()


def test_what_was_kept_is_shown_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, outcomes in (("a", OUTCOMES[:2]), ("b", OUTCOMES[1:])):
        (tmp_path / name).write_text(as_json(FACTS, outcomes))
    assert main(["--show", str(tmp_path / "a"), str(tmp_path / "b")]) == 1  # a row of it failed
    shown = capsys.readouterr().out
    assert "Put together from 2 runs" in shown
    assert shown.endswith(TABLE)


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--rows", "sum"]) == 0
    assert capsys.readouterr().out == "sum                    sum of all, 4096 x 4096 float32\n"


# --- the heuristic against the search --------------------------------------------------------------------------------
def test_a_tuned_row_and_its_table(tmp_path: Path) -> None:
    from kernmill.ir import Context

    (row,) = chosen_rows(["rms_norm"])
    with Context(CACHE_DIR=str(tmp_path)):
        lines = list(lines_of(kernels_of([row, row], tiny=True), 0.2, 2, 10.0))
    assert [line.row for line in lines] == ["rms_norm"], "each kernel once"
    assert lines[0].ratio >= 1
    slow = Line("a", "b", 2e-3, 1e-3, 5, 1, "thread i0")
    text = tuned_markdown({**FACTS, "seconds": 0.2, "threads": "1"}, [*lines, slow])
    assert "| a | b | 2.00 ms | 1.00 ms | 2.00 | 5, 1 WRONG | `thread i0` |" in text
    assert text.index("| a |") < text.index("| rms_norm |")
    (quantized,) = chosen_rows(["quant_q4_k_1"])
    assert len(kernels_of([quantized], tiny=True)) < 10, "not those that write the blocks"


# --- random sizes ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("family", sizes.FAMILIES)
def test_programs_of_random_sizes_are_right_and_the_same_for_a_seed(family: str) -> None:
    pytest.importorskip("torch")
    one, other = (list(sizes.lines_of(family, 3, 0.0)) for _ in range(2))
    assert [line.what for line in one] == [line.what for line in other]
    assert all(line.is_right and line.ratio > 0 for line in one)


def test_the_worst_sizes_come_first() -> None:
    lines = [sizes.Line(name, 1e-3 * n, 2e-3, right) for n, (name, right) in enumerate(
        [("fast", True), ("slow", True), ("wrong", False)], 1)]  # fmt: skip
    text = sizes.markdown(FACTS, lines, 2)
    assert "| wrong | 3.00 ms | 2.00 ms | WRONG |\n| slow | 2.00 ms | 2.00 ms | 1.00 |\n" in text
    assert "| fast |" not in text
