"""Containers taken apart and put together."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pytest

from kernmill import KernmillError, Tensor, jit
from kernmill.captures.pytree import Parts, contents, kind_of, rebuild, tree_flatten
from kernmill.lazy import Lazy


@dataclass
class Record:
    a: Any
    n: int = 1


Point = namedtuple("Point", "x y")


def apart(value: Any) -> tuple[Any, list[Lazy]]:
    parts = Parts()
    return tree_flatten(value, parts), parts.tensors


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
        {1: 0},
        {True: 0},
        {1.0: 0},
        {0.0: 0},
        {-0.0: 0},
    ]
    keys = [apart(value)[0] for value in values]
    assert len({hash(key) for key in keys}) > 10
    assert [i for i, a in enumerate(keys) for j, b in enumerate(keys) if i < j and a == b] == []
    assert keys == [apart(value)[0] for value in values]


@pytest.mark.parametrize("kind", ["dict_keys", "dict_items", "generator", "map", "zip", "list_iterator", "chain"])
def test_what_gives_its_values_later_is_refused(kind: str) -> None:
    """Named regression: as a result it was that of the capture, whose tensors are old and which had been read."""
    t = Tensor([1.0])
    d = {"a": t}
    given = {"dict_keys": d.keys(), "dict_items": d.items(), "generator": (x for x in [t]), "map": map(abs, [t]),
             "zip": zip([t], [t], strict=True), "list_iterator": iter([t]), "chain": chain([t])}[kind]  # fmt: skip
    for call in (lambda: jit(lambda x: [x, given])(t), lambda: jit(lambda x: x)([given])):
        with pytest.raises(KernmillError) as caught:
            call()
        assert str(caught.value) == (f"jit: a function cannot return or take a {kind}. Use a list of tensors.")


def test_rebuilding() -> None:
    a, b = Tensor([1.0]), Tensor([2.0])
    value = {"x": [a, (b, 3)], "r": Record(a, 5), "p": Point(b, None)}
    order = {id(a): 1, id(b): 0}
    made = rebuild(value, lambda t: order.get(id(t)))(["B", "A"])
    assert made == {"x": ["A", ("B", 3)], "r": Record("A", 5), "p": Point("B", None)}


@pytest.mark.parametrize("holder", [[1, 2], {"a": 1, "b": 2}, Record(1, 2)])
def test_other_parts_are_put_in_place(holder: Any) -> None:
    kind = kind_of(holder)
    assert kind is not None
    keys = [*kind.keys(holder)]
    kind.fill(holder, keys[:1], ["new"])
    assert kind.part(holder, keys[0]) == "new"
    kind.fill(holder, [*keys[:1], "more"], ["new", "other"])
    assert list(contents(holder, kind).values())[-1] == "other"


def test_what_is_no_container() -> None:
    assert [kind_of(value) for value in (1, "a", {1}, Tensor([1.0]), Record, None)] == [None] * 6
