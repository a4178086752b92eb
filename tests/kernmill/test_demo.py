"""A few steps of the demo: the loss falls, text and kernels are shown."""

from __future__ import annotations

import re

import pytest

from kernmill import Context
from kernmill.demo import STORY, run


@pytest.fixture(autouse=True)
def on_device() -> None:
    """Compiled only: PYTHON would take minutes."""


def test_a_few_steps(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(DEVICE="LLVM"):
        run(8, seed=2)
    text = capsys.readouterr().out
    losses = [float(found) for found in re.findall(r"step +\d+  loss (\S+)", text)]
    assert len(losses) == 8
    assert losses[-1] < losses[0] - 0.5
    assert len(re.findall(r"^ +\d+\.\d%", text, re.MULTILINE)) == 5
    assert "What it writes now" in text
    assert text.rstrip().endswith("on LLVM.")


def test_the_story_is_plain() -> None:
    assert 8_000 < len(STORY.read_text(encoding="ascii")) < 15_000
