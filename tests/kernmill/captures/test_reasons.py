"""Why a call is captured again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kernmill import Context, Tensor, jit, no_grad
from kernmill.captures import jitted
from kernmill.captures.jitted import Jit

Reasons = Callable[[], list[str]]


@pytest.fixture
def reasons(capsys: pytest.CaptureFixture[str]) -> Reasons:
    """The reasons of the captures since the last call."""

    def read() -> list[str]:
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("captured ")]
        return [line.partition(", ")[2] for line in lines]

    return read


def test_debug_says_why_a_function_was_captured_again(reasons: Reasons) -> None:
    double = jit(lambda x: x * 2)
    with Context(DEBUG=1):
        for length in (3, 3, 3, 4):
            double(Tensor.ones(length))
    assert reasons() == ["the first capture", "the shape of x changed from (3,) to (4,)"]


def test_a_tensor_in_a_container_is_named(reasons: Reasons) -> None:
    @jit
    def add(first: Any, *others: Any, last: Any) -> Any:
        return first["a"] + others[0][0] + last

    def call(shapes: tuple[tuple[int, ...], ...]) -> None:
        a, b, c = (Tensor.ones(*shape) for shape in shapes)
        add({"a": a}, [b], last=c)

    with Context(DEBUG=1):
        for shapes in (((3,),) * 3, ((3,),) * 3, ((1,), (3,), (3,)), ((1,), (1,), (3,)), ((1,), (1,), (1,))):
            call(shapes)
    assert reasons() == [
        "the first capture",
        "the shape of first['a'] changed from (3,) to (1,)",
        "the shape of others[0][0] changed from (3,) to (1,)",
        "the shape of last changed from (3,) to (1,)",
    ]


def test_a_gradient_that_appears_is_the_reason(reasons: Reasons) -> None:
    double = Jit(lambda w, x: w.detach() * x, runs_first=False)
    w, x = Tensor.ones(3, requires_grad=True).realize(), Tensor.ones(3).realize()
    with Context(DEBUG=1):
        double(w, x)
        w.grad = Tensor.ones(3).realize()
        double(w, x)
        w.grad = None
        with Context(DEBUG=1):
            double(w, Tensor.ones(1))
    assert reasons() == [
        "the first capture",
        "w has a gradient now (it had none)",
        "w has no gradient now (it had one)",
    ]


def test_the_setting_or_mode_that_changed_is_named(reasons: Reasons) -> None:
    double = Jit(lambda x: x * 2, runs_first=False)
    x = Tensor.ones(3).realize()
    with Context(DEBUG=1):
        double(x)
        with Context(THREADS=1):
            double(x)
            with no_grad():
                double(x)
    assert reasons() == [
        "the first capture",
        "the setting THREADS changed from 0 to 1",
        "the recording of gradients changed from True to False",
    ]


def test_a_dropped_capture_is_the_reason_and_no_sign_of_values_that_change(
    reasons: Reasons, caplog: pytest.LogCaptureFixture
) -> None:
    double = Jit(lambda x: x * 2, runs_first=False)
    lengths = range(1, jitted.MOST_KEYS + 2)
    with Context(DEBUG=1):
        for _ in range(5):
            for length in lengths:
                double(Tensor.ones(length))
    assert set(reasons()[len(lengths) :]) == {"its capture had been dropped (16 combinations of arguments are kept)"}
    assert [record.message for record in caplog.records if "for the same arguments" in record.message] == []


def test_a_call_is_compared_with_the_last_capture(reasons: Reasons) -> None:
    scale = [2.0]
    double = Jit(lambda x: x * scale[0], runs_first=False)
    with Context(DEBUG=1):
        double(Tensor.ones(3))
        double(Tensor.ones(4))
        scale[0] = 3.0
        double(Tensor.ones(3))
        double(Tensor.ones(5))
    assert reasons()[-2:] == ["scale[0] changed", "the shape of x changed from (3,) to (5,)"]
