"""Profiles, rows and kernels in a notebook: HTML without names that are HTML."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from kernmill import Tensor, profile
from kernmill.profiling.rows import short_line
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


def test_a_line_of_a_cell_has_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named regression: a cell's file has a number for its name, which says nothing to its author."""
    cells = {"/tmp/ipykernel_7/1511988142.py": ("Cell", "In[3]")}
    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=cells.get))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert short_line("/tmp/ipykernel_7/1511988142.py:2, backward") == "In[3]:2, backward"
    assert short_line("/users/me/train.py:7") == "train.py:7"
