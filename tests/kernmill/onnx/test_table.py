"""The table of operators: the node tests of the package onnx, a drawn sample each day and all of them in `slow`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="the package onnx is not installed (it comes with the extra `dev`)")

from kernmill import Context, FormatError
from kernmill.onnx.table import OPERATORS
from tests.kernmill.onnx import node_cases


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    with Context(DEVICE="LLVM"):
        yield


FAILING = Path(__file__).parent / "failing_nodes.txt"  # a case and why it fails, one a line
DAILY = 24


def known() -> dict[str, str]:
    lines = FAILING.read_text(encoding="utf-8").splitlines()
    return dict(line.split(": ", 1) for line in lines if line and not line.startswith("#"))


def test_a_drawn_sample_of_the_node_tests() -> None:
    every = sorted(node_cases.cases())
    assert not set(known()) - set(every)
    assert len(every) - len(known()) >= 1_750
    drawn = random.Random(36).sample(every, DAILY)
    wrong = {name: text for name in drawn if name not in known() and (text := node_cases.fault(name)) is not None}
    assert not wrong


@pytest.mark.slow
def test_all_node_tests() -> None:
    wrong = {name: text for name in node_cases.cases() if (text := node_cases.fault(name)) is not None}
    assert set(wrong) == set(known()), {n: wrong.get(n) for n in set(wrong) ^ set(known())}


class _Call:
    name, outputs, captured = "Relu", 1, False


@pytest.mark.parametrize(
    ("op", "values", "attributes", "text"),
    [
        ("Relu", [], {}, "an input is missing"),
        ("Relu", [None, None], {}, "2 inputs, and it takes 1"),
        ("LeakyRelu", [None], {}, "an input is missing"),
    ],
)
def test_a_call_that_does_not_fit(op: str, values: list[None], attributes: dict[str, float], text: str) -> None:
    with pytest.raises(FormatError, match=text):
        OPERATORS["", op].run(_Call(), values, attributes, 21)  # type: ignore[arg-type]
