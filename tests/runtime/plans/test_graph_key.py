"""Keys of graphs: equal for graphs that run the same kernels, whatever memory and numbers they are given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import Tensor
from kernmill.ir import KernmillError
from kernmill.runtime import graph_key


def walk(*tensors: Tensor, is_exact: bool = False) -> graph_key.GraphWalk:
    return graph_key.GraphWalk(
        [tensor.uop for tensor in tensors], {}, is_exact=is_exact, realize=graph_key.next_realize()
    )


def data(count: int = 6) -> Tensor:
    return Tensor(np.arange(count, dtype=np.float32)).realize()


def test_graphs_that_differ_in_a_number_have_one_key() -> None:
    one, other = walk(data() * 0.3), walk(data() * 0.7)
    assert one.structure == other.structure
    assert [round(value, 6) for _, value in (*one.numbers, *other.numbers)] == [0.3, 0.7]


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -1.0, float("inf"), float("nan")])
def test_numbers_that_change_the_code_stay_in_the_key(value: float) -> None:
    assert walk(data() + value).numbers == []
    assert walk(data() + value).structure != walk(data() + 0.3).structure


def test_exponents_and_power_of_two_divisors_stay_in_the_key() -> None:
    assert walk(data() ** 2.5).numbers == []
    assert walk(data() / 4.0).numbers == []
    assert len(walk(data() / 3.0).numbers) == 1


def test_a_captured_graph_has_its_numbers_in_the_key() -> None:
    assert walk(data() * 0.3, is_exact=True).numbers == []


def test_a_constant_that_is_itself_a_result_is_no_argument() -> None:
    assert walk(Tensor(0.3)).numbers == []


def test_integers_stay_in_the_key() -> None:
    assert walk(data().long() + 5).numbers == []


def test_a_walk_finds_what_an_earlier_walk_has_met() -> None:
    held = data() * 2.5
    assert walk(held).known == []
    assert walk(held + 1).known == [held.uop]


def test_an_overwritten_tensor_cannot_be_read_any_more() -> None:
    x = data()
    old = x + 1
    node: Any = x.uop
    while node.storage is None:
        node = node.src[0]
    before = node.storage
    node.storage = graph_key.STALE
    with pytest.raises(KernmillError, match=r"needs the old value of a tensor that was overwritten in place"):
        walk(old)
    node.storage = before
