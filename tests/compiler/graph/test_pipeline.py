"""The list of graph passes: names, order, and what each of them reads and makes."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from kernmill.compiler import GRAPH_PIPELINE, Draft, plan_graph
from kernmill.ir import Kernel, assign
from tests.compiler.kernels import data, matmul, softmax

FOLDER = Path(__file__).resolve().parents[3] / "compiler" / "graph"
GIVEN = {
    "roots",
    "devices",
    "in_place",
    "default_device",
    "device_table",
    "memory_price",
    "alignments",
    "slice_alignments",
    "packers",
}


def test_every_pass_stands_behind_those_it_needs() -> None:
    seen: list[str] = []
    for step in GRAPH_PIPELINE:
        assert set(step.after) <= {*seen}, f"{step.name} needs {step.after}"
        assert not step.again or step.again in seen
        seen.append(step.name)
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("name", [step.name for step in GRAPH_PIPELINE])
def test_a_pass_its_function_and_its_file_have_one_name(name: str) -> None:
    assert f"\ndef {name}(" in (FOLDER / f"{name}.py").read_text(encoding="utf-8")


def test_every_pass_says_why_it_stands_there() -> None:
    for step in GRAPH_PIPELINE:
        assert len(step.why.split()) > 5
        assert not step.why.endswith(".")


def test_a_pass_reads_what_earlier_ones_made() -> None:
    known = {field.name for field in fields(Draft)}
    made = {*GIVEN, "refused"}
    for step in GRAPH_PIPELINE:
        assert set(step.reads) <= made, step.name
        made.add(step.makes)
    assert made == known


def test_a_pass_names_a_field_once() -> None:
    for step in GRAPH_PIPELINE:
        assert len(set(step.reads)) == len(step.reads), step.name


def test_what_clashes_is_planned_again() -> None:
    """Each of two tensors gets the old value of the other one: only one of them can be written in place."""
    a, b = data(0, 4, 4), data(1, 4, 4)
    draft = plan_graph(Draft([assign(a, b), assign(b, a)], ("LLVM",) * 2, frozenset({0, 1}), "LLVM"))
    assert len(draft.refused) == 1
    assert len(draft.targets) == 1


def test_the_result_has_kernels_and_their_memory() -> None:
    draft = plan_graph(Draft([softmax(matmul(data(0, 32, 16), data(1, 16, 24)))], ("LLVM",) * 2, frozenset(), "LLVM"))
    assert all(isinstance(item, Kernel) for item in draft.plan.items)
    assert draft.memory.offsets
