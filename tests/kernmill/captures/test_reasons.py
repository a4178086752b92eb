"""Why a call is captured again."""

from __future__ import annotations

import pytest

from kernmill import Context, Tensor, jit


def test_debug_says_why_a_function_was_captured_again(capsys: pytest.CaptureFixture[str]) -> None:
    double = jit(lambda x: x * 2)
    with Context(DEBUG=1):
        for length in (3, 3, 3, 4):
            double(Tensor.ones(length))
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("captured ")]
    assert [line.partition(", ")[2] for line in lines] == [
        "the first capture",
        "the shape of tensor 0 changed from (3,) to (4,)",
    ]
