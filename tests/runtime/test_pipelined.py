"""Replays over devices: copies of what does not change are made once; devices of one memory are one native walk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from kernmill import Context, Tensor, jit, nn
from kernmill.runtime import Replay, get_device, ops_llvm

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
    big = Tensor(np.ones(1 << 21, np.float32), device=name)
    assert big.sum().item() == 1 << 21


# --- devices that share memory
Y = np.arange(4096, dtype=np.float32).reshape(64, 64) % 7


@pytest.fixture
def twin(far: Any) -> str:
    """A second CPU device, of another package, in the same memory."""
    name: str = far.announce("TWIN", type("TwinDevice", (ops_llvm.LlvmDevice,), {"CONTRACT": 1}))
    return name


def hops(twin: str, x: Tensor, count: int) -> Tensor:
    for n in range(count):
        x = ((x * 2 + 1) % 101).contiguous().to(twin if n % 2 == 0 else "LLVM").contiguous()
    return (x.to("LLVM") + 1).realize()


def expected(x: Any, count: int) -> Any:
    for _ in range(count):
        x = (x * 2 + 1) % 101
    return x + 1


def test_one_walk_over_two_devices(twin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Replay] = []
    real = Replay.__init__

    def noted(self: Replay, *given: Any) -> None:
        real(self, *given)
        made.append(self)

    monkeypatch.setattr(Replay, "__init__", noted)
    step = jit(lambda x: hops(twin, x, 5))
    for n in range(8):
        np.testing.assert_array_equal(step(Tensor(Y + n)).numpy(), expected(Y + n, 5))
    assert made[-1].batch is not None
    with Context(DEBUG=2):  # each kernel and each copy by itself, with its time
        np.testing.assert_array_equal(step(Tensor(Y)).numpy(), expected(Y, 5))


def test_arguments_and_results_that_are_copied(twin: str) -> None:
    """Copies at both ends: of memory that is another one in each call."""
    step = jit(lambda x: (x.to(twin) * 3).to("LLVM").realize())
    kept = [step(Tensor(Y + n)) for n in range(6)]
    for n, got in enumerate(kept):
        np.testing.assert_array_equal(got.numpy(), 3 * (Y + n))


def test_large_intermediates_change_their_place(twin: str) -> None:
    x = Tensor(np.ones((1024, 1024), np.float32))
    steps = [jit(lambda x, k=k: hops(twin, x * k, 3)) for k in (1, 2)]
    for _ in range(4):
        for k, step in enumerate(steps, 1):
            assert step(x).numpy()[-1, -1] == expected(k, 3)
            _ = (Tensor.rand(1500, 1000) + 1).realize()
    assert get_device(twin).limits.group == "host"
