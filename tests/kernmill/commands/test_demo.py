"""A few steps of the demo: the loss falls, the file tells something, kernels are shown."""

from __future__ import annotations

import re

import pytest

from kernmill import Context, SettingError
from kernmill.commands.demo import run


@pytest.fixture(autouse=True)
def on_device() -> None:
    """Compiled only: PYTHON would take minutes."""


def test_a_few_steps(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(DEVICE="LLVM"):
        run(12, seed=2)
    text = capsys.readouterr().out
    losses = [float(found) for found in re.findall(r"step +\d+  loss (\S+)", text)]
    assert len(losses) == 12
    assert losses[-1] < losses[0] - 0.5
    assert "What stories-q8_0.gguf (" in text
    assert text.count("  | ") >= 2
    assert len(re.findall(r"^ *\d+\.\d%", text, re.MULTILINE)) == 5
    assert text.rstrip().endswith("on LLVM.")


def test_a_device_that_computes_nothing() -> None:
    """It was said that the weights, which were what the memory held, are inf or nan."""
    with (
        Context(DEVICE="NULL"),
        pytest.raises(SettingError, match=r"demo: NULL computes nothing .* Choose "),
    ):
        run(12, seed=2)
