"""Recorded calls without nodes: the same values, gradients, views, writes and captures as with them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from kernmill import Tensor, jit, nn, no_grad
from kernmill.lazy import tracked_tensors
from kernmill.runtime import default_device

ANY: Any = Tensor


def is_deferred(tensor: Tensor) -> bool:
    return "uop" not in tensor.__dict__


def warm(make: Any) -> Tensor:
    """The result of a third call: its table and its plan are known."""
    for _ in range(3):
        make().realize()
    found: Tensor = make()
    assert is_deferred(found)
    return found


def test_no_node_is_made_for_a_known_tree_of_calls() -> None:
    layer, x = nn.Linear(8, 8), Tensor(np.arange(16.0, dtype=np.float32).reshape(2, 8))
    y = warm(lambda: layer(x).relu())
    want = np.maximum(x.numpy() @ layer.weight.numpy().T + layer.bias.numpy(), 0)  # type: ignore[union-attr]
    np.testing.assert_allclose(y.numpy(), want, rtol=1e-5)
    assert y.is_realized
    assert y.shape == (2, 8)
    if default_device() == "LLVM":  # others have no plans that are one native call
        assert is_deferred(y)


def test_the_same_tree_over_other_memory_and_over_one_memory_twice() -> None:
    a, b = Tensor([1.0, 2.0]).realize(), Tensor([10.0, 20.0]).realize()
    warm(lambda: a + b)
    assert (b + a).tolist() == [11.0, 22.0]
    assert (a + a).tolist() == [2.0, 4.0]
    assert (b + b).tolist() == [20.0, 40.0]
    warm(lambda: a + a)
    assert (a + b).tolist() == [11.0, 22.0]
    c = Tensor([[1.0], [2.0]]).realize()
    assert (a + c).shape == (2, 2)
    assert (a + c).tolist() == [[2.0, 3.0], [3.0, 4.0]]


def test_a_result_that_is_used_twice_is_one_value() -> None:
    x = Tensor([1.0, 2.0]).realize()
    for _ in range(4):
        y = x + 1
        z, w = y * y, y - x
        assert z.tolist() == [4.0, 9.0]
        assert w.tolist() == [1.0, 1.0]
        assert y.tolist() == [2.0, 3.0]


def test_writes_after_the_call_do_not_reach_it() -> None:
    for _ in range(4):
        x = Tensor([1.0, 2.0]).realize()
        y = x + 1
        x.assign(Tensor([7.0, 7.0]))
        x.realize()
        z = x + 1
        assert y.tolist() == [2.0, 3.0]
        assert z.tolist() == [8.0, 8.0]
        done = (x + 1).realize()
        above = done * done
        done[0] = 0.0
        assert done.tolist() == [0.0, 8.0]
        assert above.tolist() == [64.0, 64.0]


@pytest.mark.parametrize("is_realized", [False, True])
def test_gradients_flow_through_deferred_calls(is_realized: bool) -> None:
    for _ in range(4):
        x = Tensor([1.0, 2.0], requires_grad=True)
        y = x * x
        loss = (y * y).sum()
        if is_realized:
            assert loss.item() == 17.0
            assert y.tolist() == [1.0, 4.0]
        (by_y,) = loss.gradient(y)
        assert by_y.tolist() == [2.0, 8.0]
        loss.backward()
        assert x.grad is not None
        assert x.grad.tolist() == [4.0, 32.0]


def test_equal_calls_are_two_variables() -> None:
    for _ in range(4):
        x = Tensor([1.0, 2.0], requires_grad=True)
        a, b = x * x, x * x
        (by_a,) = (a * b).sum().gradient(a)
        assert by_a.tolist() == [1.0, 4.0]


def test_captures_and_views_see_the_node() -> None:
    double: Any = jit(lambda t: t + t)
    x = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()
    for _ in range(4):
        y = x + x
        assert double(y).tolist() == [[4.0, 8.0], [12.0, 16.0]]
        y = x + x
        row = y[1]
        row[0] = 0.0
        assert y.tolist() == [[2.0, 4.0], [0.0, 8.0]]


def test_a_list_of_all_tensors_has_their_nodes() -> None:
    x = Tensor([1.0]).realize()
    y = warm(lambda: x + x)
    assert not any(t._call is not None for _, t in tracked_tensors())
    assert not is_deferred(y)
    assert y.tolist() == [2.0]


def test_a_long_chain_of_calls_needs_no_recursion() -> None:
    x = Tensor([0.0]).realize()
    with no_grad():
        for _ in range(2):
            y = x
            for _ in range(3000):
                y = y + x
            assert y.item() == 0.0


def test_threads_share_a_deferred_tensor() -> None:
    x = Tensor(np.arange(64.0)).realize()
    for _ in range(20):
        y = x + x
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda t: (t.sum().item(), t.uop), [y] * 4))
        assert {value for value, _ in found} == {4032.0}
        assert len({id(node) for _, node in found}) == 1
