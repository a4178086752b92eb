"""Profiles, rows and kernels in a notebook: HTML without names that are HTML."""

from __future__ import annotations

import re

import numpy as np
import pytest

from kernmill import Tensor, profile
from kernmill.runtime import device_rates


@pytest.fixture(autouse=True)
def on_device() -> None:
    """The default one."""


@pytest.fixture(autouse=True)
def known_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring them on a busy machine would take a second."""
    ceilings = device_rates.Ceilings(50.0, 10.0, 20.0, 1000.0, 1 << 20)
    monkeypatch.setattr(device_rates, "measured_ceilings", lambda device: ceilings)


def test_a_profile_and_its_rows() -> None:
    x = Tensor(np.ones((8, 8), np.float32)).realize()
    with profile() as found:
        (x @ x).softmax(1).numpy()
    shown = found._repr_html_()
    assert shown.count("<tr>") == len(found.rows) + 1
    assert "test_notebook.py" in shown
    assert " in all: kernels" in shown
    for row in found.rows:
        text = row._repr_html_()
        assert "<details open><summary>schedule</summary>" in text
        assert "linearize" in text
        assert "LLVM IR" in text
        assert {*re.findall(r"</?(\w+)", text)} == {"b", "br", "details", "summary", "pre"}
    assert row.pages()[0].language == "LLVM IR"


def test_names_that_are_html() -> None:
    with profile() as found:
        (Tensor([1.0]) * 2).realize()
    found.rows[0].name = "<script>"
    assert "<script>" not in found._repr_html_() + found.rows[0]._repr_html_()
