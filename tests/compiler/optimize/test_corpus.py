"""Schedules of the corpus: kernels of the bench set and of ONNX models, on machines of several families."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernmill.compiler import choose
from tests.compiler.corpus import TARGETS, kernels, schedule_lines
from tests.conftest import Golden


@pytest.mark.parametrize("name", TARGETS)
def test_schedules(name: str, golden: Golden) -> None:
    """A change of the optimizer shows here which kernels it changes, and on which machines."""
    assert golden == schedule_lines(TARGETS[name])


@pytest.mark.parametrize(
    ("figure", "row"),
    [
        ("prefetch_bytes", "max_pool"),
        ("page_bytes", "rows_"),
        ("fma", "mlp_step"),
        ("load", "mlp_step"),
        ("issue", "mlp_step"),
        ("latency", "mlp_step"),
    ],
)
def test_strategies_read_the_machine(figure: str, row: str) -> None:
    """The loops of a kernel are others on a machine with twice the figure, or with half of it."""
    target = TARGETS["zen4"]
    machines = [replace(target.machine, **{figure: times * getattr(target.machine, figure)}) for times in (2, 0.5)]
    asts = [ast for name, ast in kernels().items() if name.startswith(row)]
    assert any(choose(ast, target) != choose(ast, replace(target, machine=m)) for ast in asts for m in machines)
