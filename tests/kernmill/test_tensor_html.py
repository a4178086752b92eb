"""A tensor in a notebook: a line and a table; nothing is computed for it."""

from __future__ import annotations

import numpy as np
import pytest

from kernmill import Tensor, dtypes


@pytest.fixture(autouse=True)
def on_device() -> None:
    """The default one."""


def test_values_are_a_table() -> None:
    shown = Tensor(np.array([[1.5, 2.0], [3.25, 1e-9]], np.float32))._repr_html_()
    assert shown.startswith("<b>Tensor</b> (2, 2) float32 on LLVM<table>")
    assert "<td>3.25</td><td>1e-09</td>" in shown


def test_nothing_is_computed_for_it() -> None:
    x = Tensor([1.0, 2.0]) * 3
    assert x._repr_html_() == "<b>Tensor</b> (2,) float32 on LLVM, not realized"
    assert not x.is_realized


@pytest.mark.parametrize("shape", [(), (3,), (100,), (0, 4), (20, 30), (2, 3, 4, 5)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    shown = Tensor(np.ones(shape, np.int32))._repr_html_()
    rows, columns = (1, 1, *shape)[-2:]
    assert shown.count("<td>1</td>") == min(8, rows) * min(8, columns)
    assert ("&#8230;" in shown) == (bool(shape) and shape[-1] > 8)


def test_bfloat16() -> None:
    assert Tensor([1.0]).cast(dtypes.bfloat16).realize()._repr_html_() == "<b>Tensor</b> (1,) bfloat16 on LLVM"
