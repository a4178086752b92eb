"""Captured calls with other Python floats: right in every branch, and without new kernels from the third capture on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernmill import Tensor, jit
from kernmill.runtime import counters

Array = np.ndarray[Any, np.dtype[Any]]


def numbers(*shape: int, start: float = 0.0) -> Array:
    return (np.arange(int(np.prod(shape)), dtype=np.float32) + np.float32(start)).reshape(shape)


DECAYING: dict[str, tuple[Callable[[Tensor, float], Tensor], Callable[[Array, float], Array]]] = {
    "a factor": (lambda x, rate: x * rate + 1, lambda x, rate: x * rate + 1),
    "a number made of it": (lambda x, rate: x * (rate * 2) - rate**2, lambda x, rate: x * (rate * 2) - rate**2),
    "a decision": (lambda x, rate: x * 3 if rate > 1 else x * rate, lambda x, rate: x * 3 if rate > 1 else x * rate),
}  # fmt: skip


@pytest.mark.parametrize("name", DECAYING)
def test_captures_for_other_numbers_share_their_kernels(name: str) -> None:
    """Each number compiled all kernels of the function again; outside of jit they are arguments."""
    function, wanted = DECAYING[name]
    work, x = jit(function), numbers(6)
    for rate in (0.3, 0.7, 1.9, 0.9):
        np.testing.assert_allclose(work(Tensor(x), rate).numpy(), wanted(x, rate), rtol=1e-6)
    before = counters.compiled + counters.from_disk
    for i in range(2, 40):
        rate = 0.1 + i / 17
        for _ in range(2):
            np.testing.assert_allclose(work(Tensor(x), rate).numpy(), wanted(x, rate), rtol=1e-5, atol=1e-6)
    assert counters.compiled + counters.from_disk <= before + 1  # of the other branch
    np.testing.assert_allclose(work(Tensor(x), 0.3).numpy(), wanted(x, 0.3), rtol=1e-6)


def test_a_rate_that_decays_in_a_captured_step() -> None:
    weight, own = Tensor(numbers(4)), numbers(4)
    work = jit(lambda x, rate: weight.assign(weight - x * rate) * 1)
    for i in range(12):
        x, rate = numbers(4, start=i), 0.1 * 0.9**i
        own = own - x * np.float32(rate)
        np.testing.assert_allclose(work(Tensor(x), rate).numpy(), own, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(weight.numpy(), own, rtol=1e-5, atol=1e-5)
