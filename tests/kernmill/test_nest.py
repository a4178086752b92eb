"""Containers taken apart and put together."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest

from kernmill import Tensor
from kernmill.nest import Leaf, assign_at, rebuild, take_apart


@dataclass
class Record:
    a: Any
    n: int = 1


Point = namedtuple("Point", "x y")


def apart(value: Any) -> tuple[Any, list[Leaf]]:
    leaves: list[Leaf] = []
    return take_apart(value, leaves, []), leaves


def test_structure_is_hashable_and_tells_apart() -> None:
    t = Tensor([1.0])
    values = [
        t,
        [t],
        (t,),
        {"a": t},
        {"b": t},
        Record(t),
        Record(t, 2),
        Point(t, 1),
        1,
        1.0,
        True,
        0.0,
        -0.0,
        None,
        "1",
        {1},
        {2},
    ]
    keys = [apart(value)[0] for value in values]
    assert len({hash(key) for key in keys}) > 10
    assert [i for i, a in enumerate(keys) for j, b in enumerate(keys) if i < j and a == b] == []
    assert keys == [apart(value)[0] for value in values]


def test_rebuilding() -> None:
    a, b = Tensor([1.0]), Tensor([2.0])
    value = {"x": [a, (b, 3)], "r": Record(a, 5), "p": Point(b, None)}
    order = {id(a): 1, id(b): 0}
    made = rebuild(value, lambda t: order[id(t)])(["B", "A"])
    assert made == {"x": ["A", ("B", 3)], "r": Record("A", 5), "p": Point("B", None)}


@pytest.mark.parametrize("holder", [lambda t: [t], lambda t: {"k": t}, Record])
def test_leaves_can_be_exchanged(holder: Any) -> None:
    value = holder(Tensor([1.0]))
    (leaf,) = apart(value)[1]
    assign_at(leaf.holder, leaf.key, "new")
    assert "new" in (
        value
        if isinstance(value, list)
        else getattr(value, "__dict__", value).values()
        if not isinstance(value, dict)
        else value.values()
    )
