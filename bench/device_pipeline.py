"""Two devices in processes of their own, with milliseconds of work each: pipelined, and one after the other.

    python -m bench.device_pipeline             # 30 calls, 10 ms of work on each device

Pipelined: the next call begins before the result of the last one is read. One after the other: each result is read
first. Both run in turns, and what is printed are the medians and their ratio. The devices are those of the tests
(tests/far_device.py): a launch sleeps, so a busy machine changes little.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernmill import Tensor, jit
from kernmill.runtime import device, get_device
from tests.far_device import FarDevice

__all__ = ["main", "measured"]

_ROUNDS = 5


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the times of both orders and their ratio, eager and captured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--calls", type=int, default=30)
    parser.add_argument("--ms", type=float, default=10.0, help="work of each device in a call")
    given = parser.parse_args(arguments)
    for kind, (apart, together) in measured(given.calls, given.ms).items():
        shown = f"one after the other {apart:.2f} ms a call, pipelined {together:.2f} ms: {apart / together:.2f} x"
        print(f"{kind:8} {shown}")


def measured(calls: int, ms: float) -> dict[str, tuple[float, float]]:
    """Milliseconds of a call, one after the other and pipelined, by kind of call."""
    device.device_names = lambda: {"FAR": "tests.far_device:FarDevice"}  # type: ignore[assignment]
    names = [get_device(f"FAR:{n}?sleep_ns={int(ms * 1e6)}").name for n in (1, 2)]
    first, second = (Tensor.ones(16, 16, device=name).contiguous().realize() for name in names)

    def call(x: Tensor) -> Tensor:
        return ((x.to(names[0]) @ first).to(names[1]) @ second).realize()

    found: dict[str, tuple[float, float]] = {}
    for kind, step in (("eager", call), ("captured", jit(call))):
        inputs = [np.full((4, 16), n, np.float32) for n in range(calls)]
        orders: list[Callable[[Any, Any], list[Any]]] = [_apart, _pipelined]
        times: list[list[float]] = [[], []]
        for _ in range(1 + _ROUNDS):
            for order, kept in zip(orders, times, strict=True):
                start = time.perf_counter()
                results = order(step, inputs)
                kept.append((time.perf_counter() - start) * 1e3 / calls)
                assert all((result == 256 * n).all() for n, result in enumerate(results))
        apart, together = (statistics.median(kept[1:]) for kept in times)
        found[kind] = apart, together
    return found


def _apart(step: Callable[[Tensor], Tensor], inputs: Sequence[Any]) -> list[Any]:
    return [step(Tensor(x)).numpy() for x in inputs]


def _pipelined(step: Callable[[Tensor], Tensor], inputs: Sequence[Any]) -> list[Any]:
    results: list[Any] = []
    waiting: list[Tensor] = []
    for x in inputs:
        waiting.append(step(Tensor(x)))
        if len(waiting) > 1:
            results.append(waiting.pop(0).numpy())
    return [*results, *[y.numpy() for y in waiting]]


if __name__ == "__main__":
    assert FarDevice
    main()
