"""The benchmark's arithmetic and its table; and that every row is right at a tiny size. Nothing is timed here."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench.__main__ import as_json, chosen_peers, chosen_rows, main, thread_counts
from bench.figures import Spread, digits, ratios, show_bytes, show_ratio, show_seconds, spread
from bench.machine import machine, machine_line
from bench.measure import ROWS, judged, measure_row
from bench.peers import installed
from bench.row import Goal, Outcome, Prepared, Row, Setup, WrongResult, take_off
from bench.table import BEGIN, END, markdown, write_readme
from bench.tensor_rows import check
from bench.timing import call_sampler, calls_for, interleave
from bench.train_rows import reference_losses
from bench.tuned import Line, lines_of
from bench.tuned import markdown as tuned_markdown

TINY = Setup(peers=("kernmill",), rounds=2, sample_s=0.0, tiny=True)
FACTS = {**machine(), "rounds": 2, "jit": True}


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


def test_short_calls_are_repeated_within_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.timing.timed", lambda call, count: count * 1e-6)
    assert 1000 <= calls_for(lambda: None, 1e-3) <= 1500
    assert calls_for(lambda: None, 0.0) == 1
    assert call_sampler(lambda: None, 1e-3, threads=1, units=10)() == pytest.approx(1e-7)


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


def test_the_training_reference_learns() -> None:
    losses = reference_losses(batch=2, steps=3)
    assert losses[0] == pytest.approx(np.log(10), abs=1.0)
    assert losses[2] < losses[1] < losses[0]


LINUX_ONLY = {"convnet_memory"}
NOT_IN_PROCESS = {"import", "first_cold", "first_warm", "convnet_memory"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_kernmill_is_right_at_a_tiny_size(row: Row) -> None:
    if row.name in LINUX_ONLY and not sys.platform.startswith("linux"):
        pytest.skip("reads /proc")
    prepared = row.prepare(TINY)  # compares with the reference
    assert "kernmill" in prepared.samplers


@pytest.mark.parametrize("row", [row for row in ROWS if row.name not in NOT_IN_PROCESS], ids=lambda row: row.name)
def test_numpy_is_right_at_a_tiny_size(row: Row) -> None:
    row.prepare(Setup(peers=("numpy",), tiny=True))


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
    assert outcome.goal == "3x torch: reached (4.00)"
    assert outcome.notes == ["a note"]
    assert measure_row(row, Setup(rounds=2, threads=2)).goal == ""  # the goal is about one thread


def test_limits_are_judged_after_the_baseline_is_taken_off() -> None:
    row = fixed({"python": 0.25, "kernmill": 0.375}, baseline="python", goals=(Goal(limit=0.15),))
    assert measure_row(row, TINY).goal == "under 150 ms: reached (125 ms)"
    prepared = Prepared({}, measured=lambda samples: 0.2)
    assert judged(Goal(limit=0.15), row, prepared, {"kernmill": [0.1]}) == "under 150 ms: short (200 ms)"


def test_a_row_that_fails_has_no_times() -> None:
    def prepare(_: Setup) -> Prepared:
        raise WrongResult("torch: the product is wrong\nmore")

    outcome = measure_row(Row("bad", "bad", prepare), TINY)
    assert (outcome.samples, outcome.failed) == ({}, "WrongResult: torch: the product is wrong")


# --- table -----------------------------------------------------------------------------------------------------------
OUTCOMES = [
    Outcome("a", "the first", 1, "GFLOP/s", "s", 2e9, {"kernmill": [0.5, 0.5], "torch": [1.0, 1.0]}, ["1 kernel"]),
    Outcome("a", "the first", 2, "GFLOP/s", "s", 2e9, {"kernmill": [0.25, 0.25], "numpy": [0.5, 0.5]}),
    Outcome("b", "the second", 1, failed="WrongResult: no"),
]
TABLE = """
| row | threads | kernmill | rate | torch: time, x | numpy: time, x | goal |
| --- | --: | --: | --: | --: | --: | --- |
| a | 1 | 500 ms (500 ms-500 ms) | 4.00 GFLOP/s | 1.00 s, **2.00** |  |  |
| a | 2 | 250 ms (250 ms-250 ms) | 8.00 GFLOP/s |  | 500 ms, **2.00** |  |

* `a`: the first. 1 thread: 1 kernel.
* `b`: the second.

Failed, hence not timed:

* **b**, 1 thread: WrongResult: no
"""


def test_the_table() -> None:
    text = markdown(FACTS, OUTCOMES)
    assert text.endswith(TABLE)
    assert text.startswith(machine_line(FACTS))


def test_the_table_says_when_nothing_was_captured() -> None:
    assert "without jit" in markdown({**FACTS, "jit": False}, OUTCOMES)
    assert "without jit" not in markdown(FACTS, OUTCOMES)


def test_json_holds_every_sample() -> None:
    kept = json.loads(as_json(FACTS, OUTCOMES))
    assert [Outcome(**row) for row in kept["rows"]] == OUTCOMES
    assert kept["machine"]["versions"]["numpy"] == np.__version__


def test_the_readme_keeps_what_surrounds_the_table(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_readme("new\n", readme)
    write_readme("newer\n", readme)
    assert readme.read_text() == f"before\n{BEGIN}\nnewer\n{END}\nafter\n"
    readme.write_text("nothing")
    with pytest.raises(ValueError, match="marks"):
        write_readme("new\n", readme)


def test_our_readme_has_the_place() -> None:
    text = (Path(__file__).resolve().parent.parent / "bench" / "README.md").read_text(encoding="utf-8")
    assert 0 < text.find(BEGIN) < text.find(END)


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


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "sum"]) == 0
    assert capsys.readouterr().out == "sum              sum of all, 4096 x 4096 float32\n"


# --- the heuristic against the search --------------------------------------------------------------------------------
def test_a_tuned_row_and_its_table(tmp_path: Path) -> None:
    from kernmill.ir import Context

    (row,) = chosen_rows(["rms_norm"])
    with Context(CACHE_DIR=str(tmp_path)):
        lines = lines_of(row, 0.2, 2, tiny=True)
    assert [line.row for line in lines] == ["rms_norm"]
    assert lines[0].ratio >= 1
    slow = Line("a", "b", 2e-3, 1e-3, 5, 1, "thread i0")
    text = tuned_markdown(FACTS, [*lines, slow], 0.2, "1")
    assert "| a | b | 2.00 ms | 1.00 ms | 2.00 | 5, 1 WRONG | `thread i0` |" in text
    assert text.index("| a |") < text.index("| rms_norm |")
