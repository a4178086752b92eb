"""Copies of memory that does not change: made once, and again as soon as somebody may have written it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from kernmill import Tensor, jit, nn
from kernmill.runtime import get_device

Far = Callable[..., str]
X = np.arange(12, dtype=np.float32).reshape(3, 4)


@contextmanager
def counting(name: str) -> Iterator[list[int]]:
    """Bytes of each copy to a device."""
    device: Any = get_device(name)
    real, found = device.copy_in, list[int]()

    def noted(target: Any, source: memoryview) -> None:
        found.append(len(source))
        real(target, source)

    device.copy_in = noted
    yield found
    del device.copy_in


@pytest.mark.parametrize("captured", [False, True])
def test_a_weight_is_copied_once(far: Far, captured: bool) -> None:
    name = far()
    w = Tensor(np.ones((4, 300), np.float32)).contiguous().realize()

    def call(x: Tensor) -> Tensor:
        return (x.to(name) @ w.to(name)).to("LLVM").realize()

    step = jit(call) if captured else call
    for n in range(3):
        step(Tensor(X + n))
    with counting(name) as copied:
        for n in range(6):
            np.testing.assert_array_equal(step(Tensor(X + n)).numpy(), (X + n) @ np.ones((4, 300)))
    assert copied == [48] * 6


@pytest.mark.parametrize("captured", [False, True])
def test_a_weight_that_is_assigned_is_copied_again(far: Far, captured: bool) -> None:
    name = far()
    w = Tensor(np.ones((4, 5), np.float32)).contiguous().realize()
    step: Any = lambda x: (x.to(name) @ w.to(name)).to("LLVM").realize()  # noqa: E731
    step = jit(step) if captured else step
    for n in range(8):
        np.testing.assert_array_equal(step(Tensor(X)).numpy(), X @ np.full((4, 5), n + 1))
        w.assign(w + 1).realize()


def test_a_weight_that_a_captured_function_updates(far: Far) -> None:
    """A replay writes it in place, and tells nobody."""
    name = far()
    w = Tensor(np.ones((4, 5), np.float32)).contiguous().realize()
    bump = jit(lambda: w.assign(w + 1).realize())
    read = jit(lambda x: (x.to(name) @ w.to(name)).to("LLVM").realize())
    for n in range(8):
        np.testing.assert_array_equal(read(Tensor(X)).numpy(), X @ np.full((4, 5), n + 1))
        np.testing.assert_array_equal((Tensor(X).to(name) @ w.to(name)).numpy(), X @ np.full((4, 5), n + 1))
        bump()


def test_results_of_captured_functions(far: Far) -> None:
    """Their memory is used again when their tensor is gone."""
    name = far()
    made = jit(lambda x: (x * 2).realize())
    for n in range(8):
        y = made(Tensor(X + n))
        assert (y.to(name) + 1).realize().numpy().tolist() == (2 * (X + n) + 1).tolist()


def test_training_with_a_copy_of_the_weight(far: Far) -> None:
    name = far()
    w = Tensor(np.ones((4, 2), np.float32), requires_grad=True)
    optimizer = nn.optim.SGD([w], lr=0.5)

    @jit
    def step() -> Tensor:
        optimizer.zero_grad()
        loss = (Tensor(X).to(name) @ w.to(name)).sum()
        loss.backward()
        optimizer.step()
        return loss

    for n in range(6):
        want = np.ones((4, 2), np.float32) - 0.5 * n * X.sum(0)[:, None]
        assert step().item() == (X @ want).sum()
        assert (w.to(name) * 1).numpy().tolist() == (want - 0.5 * X.sum(0)[:, None]).tolist()


def test_memory_of_numpy_is_copied_each_time(far: Far) -> None:
    name, array = far(), X.copy()
    x = Tensor.from_numpy(array) if hasattr(Tensor, "from_numpy") else Tensor(array)
    first = (x.to(name) + 1).realize()
    array += 1
    again = (x.to(name) + 1).realize()
    now = x.numpy()
    assert first.numpy().tolist() == (X + 1).tolist()
    assert again.numpy().tolist() == (now + 1).tolist()


def test_copies_give_way_where_memory_is_short(far: Far) -> None:
    """8 MiB are kept of 12; a tensor of 8 MiB needs them."""
    name = far(mib=12)
    w = Tensor(np.ones(1 << 21, np.float32)).contiguous().realize()
    assert w.to(name).sum().item() == 1 << 21
    gc.collect()
    big = Tensor(np.ones(1 << 21, np.float32), device=name)
    assert big.sum().item() == 1 << 21
