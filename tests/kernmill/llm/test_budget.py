"""What operations of a template take."""

from __future__ import annotations

import math
import operator
from typing import Any

import pytest

from kernmill import FormatError
from kernmill.llm import budget


def taken(what: Any, *given: Any) -> int:
    """The steps that a call takes."""
    left = [math.inf]
    left[0] = 10**9
    token = budget._left.set(left)
    try:
        what(*given)
    finally:
        budget._left.reset(token)
    return 10**9 - int(left[0])


def test_reading_goes_through_all_that_is_in_a_value() -> None:
    text = "x" * 2560
    assert taken(budget.read, text) == 10
    assert taken(budget.read, [text, text]) == 2 + 20
    assert taken(budget.read, {"k": [1, 2, 3]}) == 1 + 3
    assert budget.read({"ab": ["cde"]}, "f") == 6
    assert taken(budget.read, (1, 2)) > taken(budget.read, [1, 2])  # tuples can be chosen to have one hash


def test_a_comparison_takes_what_both_sides_have() -> None:
    text = "x" * 25600
    other = text[:-1] + "y"
    assert taken(budget.compare, operator.eq, text, other) == 1 + 100
    assert taken(budget.compare, operator.eq, text, "user") == 1
    assert taken(budget.compare, operator.eq, [text] * 9, []) == 1
    assert taken(budget.compare, operator.eq, {"k": text}, {"k": other}) == 1 + 1 + 100
    assert budget.compare(operator.lt, [1, "a"], [1, "b"]) is True


def test_what_is_contained_is_what_python_says() -> None:
    nan = math.nan
    cases = [("ab", "b"), ("ab", "c"), ([1, 2], 2), ([1, 2], 3), ([nan], nan), ((), 1), ({"k": 1}, "k"), ({"k": 1}, 1),
             (range(3), 2), ({"k": 1}.values(), 1), ({"k": 1}.items(), ("k", 1)), (iter([1, 2]), 2)]  # fmt: skip
    for whole, part in cases:
        expected = part in whole if not hasattr(whole, "__next__") else True
        assert budget.contains(whole, part) is expected
    with pytest.raises(TypeError):
        budget.contains("ab", 1)
    assert taken(budget.contains, list(range(100)), 3) < 20  # it ends where it is found


def test_sides_compare_in_a_row() -> None:
    a, b, c = map(budget.Side, (1, 2, 2))
    assert a < b <= c == b >= a != c
    assert b > a
    assert a in budget.Side([1])
    assert c not in budget.Side([1])


def test_what_is_handed_on_costs_nothing_by_its_size() -> None:
    many = ["x" * 1000] * 10000
    for name in ("length", "first", "default", "selectattr", "is defined", "is string", "is iterable"):
        assert taken(budget.pay, name, (many,), {}) < 20
        assert taken(budget.made, many, name) < 20 or name.startswith("is ")
    assert taken(budget.pay, "tojson", (many,), {}) > 10000
    assert taken(budget.pay, "sort", (many,), {}) > 5 * taken(budget.pay, "string", (many,), {})


def test_iterators_become_lists_where_they_are_read() -> None:
    (values,) = budget.pay("sort", (iter([2, 1]),), {})
    assert values == [2, 1]
    given = iter([1])
    assert budget.pay("map", (given,), {})[0] is given


def test_a_rendering_has_an_end() -> None:
    with budget.steps():
        budget.spend(budget.MAX_STEPS)
        with pytest.raises(FormatError) as caught:
            budget.spend(1)
    assert str(caught.value) == "chat template: it runs for more than 1000000 steps."
