"""Tensors in dicts, lists and tuples."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from kernmill import DTypeError, ShapeError, Tensor
from kernmill.functional.trees import pair_of, parts_of, replaced, same_form, tensors_in


class Point(NamedTuple):
    x: object
    y: object


def test_parts_are_found_and_replaced_in_order() -> None:
    value = {"a": [1, (2,)], "b": Point(3, {"c": 4})}
    assert [*parts_of(value)] == [1, 2, 3, 4]
    assert replaced(value, iter("wxyz")) == {"a": ["w", ("x",)], "b": Point("y", {"c": "z"})}


def test_mistakes() -> None:
    with pytest.raises(DTypeError, match=r"^grad: a float has no gradient. Give tensors, in dicts, lists and tuples."):
        tensors_in({"a": 3.0}, "grad")
    with pytest.raises(ShapeError, match=r"^scan: the function returns a int. Return a pair"):
        pair_of(3)
    with pytest.raises(ShapeError, match=r"^x must keep form, shape and dtype: int64 .2,. became \['int64 .2,.'\]"):
        same_form("x", Tensor([1, 2]), [Tensor([1, 2])])
