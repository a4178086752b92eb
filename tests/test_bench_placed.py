"""bench/placed_*.py on tiny graphs: what they compare, not how long anything takes."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from bench import placed_best, placed_graphs, placed_models
from bench.placed_graphs import Prediction
from kernmill.ir import DeviceSpec, DeviceTable, Link
from kernmill.runtime import device_list, device_rates, placement_report, plan

TINY = {
    "product": (lambda x, w: (x @ w).relu() @ w, ((2, 4), (4, 4))),
    "chain": (lambda x, w: ((x @ w).relu() @ w).relu() @ w, ((2, 4), (4, 4))),
}


@pytest.fixture(autouse=True)
def rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM computes 1,000 times as fast as others; a copy takes a microsecond and 1 ns a byte."""

    def table(leaves: Any, nodes: Any) -> DeviceTable:
        rates = [(name, 10.0 if name == "LLVM" else 0.01) for name in device_list()]
        specs = [DeviceSpec(name).with_rates([100.0, rate, rate, rate]) for name, rate in rates]
        return DeviceTable(tuple(specs), {(a.name, b.name): Link(1_000.0, 1.0) for a in specs for b in specs})

    monkeypatch.setattr(device_rates, "device_table", table)
    monkeypatch.setattr(placed_best, "GRAPHS", TINY)
    plan.plans.clear()


def predicted(graph: Any, table: DeviceTable) -> float:
    """What `placed_best` measures, without a clock."""
    return sum(split.predicted_ns + split.copies_ns for split in placement_report.splits_of(graph, table))


def test_the_chosen_placement_is_the_best_of_all_that_are_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[float] = []

    def time_ns(graph: Any, table: DeviceTable) -> float:
        tried.append(predicted(graph, table))
        return tried[-1]

    monkeypatch.setattr(placed_best, "_time_ns", time_ns)
    best = placed_best.best_of("product", ["LLVM", "PYTHON"])
    assert best is not None
    assert len(set(tried[: best.placements])) > 1  # each placement is planned, not the same one again
    assert best.chosen_ns == best.best_ns == min(tried)
    assert best.ratio == 1.0
    assert set(best.names.split(",")) == {"LLVM"}
    assert f"{best.placements:4} placements  chosen " in capsys.readouterr().out


def test_a_worse_choice_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed_best, "_time_ns", predicted)

    def choose_devices(choice: Any) -> None:
        choice.device = [max(costs, key=costs.__getitem__) for costs in choice.cost]

    monkeypatch.setattr(importlib.import_module("kernmill.compiler.graph.place"), "choose_devices", choose_devices)
    best = placed_best.best_of("product", ["LLVM", "PYTHON"])
    assert best is not None
    assert best.ratio > 1.1


def test_too_many_placements_are_left_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(placed_best, "_MOST", 3)
    assert placed_best.best_of("chain", ["LLVM", "PYTHON"]) is None
    assert "placements: left out" in capsys.readouterr().out


def test_a_prediction_is_right_within_a_quarter() -> None:
    assert [Prediction("g", "LLVM", p, 100.0).is_right for p in (79.0, 80.0, 125.0, 126.0)] == [
        False,
        True,
        True,
        False,
    ]


def test_a_graph_is_predicted_and_measured_on_its_device() -> None:
    (found,) = placed_graphs.predictions("LLVM", {"product": TINY["product"]}, rounds=1)
    assert (found.graph, found.device) == ("product", "LLVM")
    assert found.predicted_ns > 0 < found.measured_ns


def test_the_overhead_of_splits_is_without_the_copies() -> None:
    assert placed_models.Splits(10.0, 12.0, 1.5, True).overhead == pytest.approx(0.05)


@contextmanager
def null_devices(mib: Sequence[int], kind: str = "FAR") -> Iterator[list[str]]:
    """Instead of far devices, those that compute nothing."""
    yield ["NULL"] * len(mib)


def test_a_token_is_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed_models, "far_devices", lambda mib: null_devices(mib[:1]))
    found = placed_models.placing(layers=1)
    assert found.units > 20
    assert found.first_ms > 0 < found.median_ms


def test_splits_are_compared_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One model over one device and one over four; the texts of both and the copies between neighbours."""
    turns: list[str] = []

    def generated(model: str, tokens: int, taken: list[float]) -> list[int]:
        turns.append(model)
        taken.append({"1": 4.0, "4": 5.0}[model])
        return [7] * tokens

    monkeypatch.setattr(placed_models, "far_devices", null_devices)
    monkeypatch.setattr(placed_models, "model_over", lambda path, names, layers: "1" if len(names) == 1 else "4")
    monkeypatch.setattr(placed_models, "_generate", generated)
    monkeypatch.setattr(placed_models, "_copy_ms", lambda a, b: 0.25)
    found = placed_models.splits(tokens=2, layers=1)
    assert found == placed_models.Splits(4.0, 5.0, 0.75, True)
    assert turns == ["1", "4"] * 5
