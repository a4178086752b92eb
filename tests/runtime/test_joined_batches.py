"""A replay over devices that share memory: one native walk, with the values of one device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import Context, Tensor, jit
from kernmill.runtime import Replay, get_device, ops_llvm

X = np.arange(4096, dtype=np.float32).reshape(64, 64) % 7


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
        np.testing.assert_array_equal(step(Tensor(X + n)).numpy(), expected(X + n, 5))
    assert made[-1].batch is not None
    with Context(DEBUG=2):  # each kernel and each copy by itself, with its time
        np.testing.assert_array_equal(step(Tensor(X)).numpy(), expected(X, 5))


def test_arguments_and_results_that_are_copied(twin: str) -> None:
    """Copies at both ends: of memory that is another one in each call."""
    step = jit(lambda x: (x.to(twin) * 3).to("LLVM").realize())
    kept = [step(Tensor(X + n)) for n in range(6)]
    for n, got in enumerate(kept):
        np.testing.assert_array_equal(got.numpy(), 3 * (X + n))


def test_large_intermediates_change_their_place(twin: str) -> None:
    x = Tensor(np.ones((1024, 1024), np.float32))
    steps = [jit(lambda x, k=k: hops(twin, x * k, 3)) for k in (1, 2)]
    for _ in range(4):
        for k, step in enumerate(steps, 1):
            assert step(x).numpy()[-1, -1] == expected(k, 3)
            _ = (Tensor.rand(1500, 1000) + 1).realize()
    assert get_device(twin).limits.group == "host"
