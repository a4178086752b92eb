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
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from kernmill import Tensor, jit
from kernmill.runtime import close_device, device, get_device

from .row import Goal, Prepared, Row, Setup

__all__ = ["DEVICE_ROWS", "main", "measured"]

_ROUNDS = 5
_NAMES = ("FAR:1", "FAR:2")
_KNOWN = device.device_names
Step: TypeAlias = "Callable[[Tensor], Tensor]"
Order: TypeAlias = "Callable[[Step, Sequence[Any]], list[Any]]"


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
    call = two_devices(ms)
    found: dict[str, tuple[float, float]] = {}
    for kind, step in (("eager", call), ("captured", jit(call))):
        times: list[list[float]] = [[], []]
        for _ in range(1 + _ROUNDS):
            for order, kept in zip((_apart, _pipelined), times, strict=True):
                kept.append(seconds_of(order, step, calls) * 1e3)
        apart, together = (statistics.median(kept[1:]) for kept in times)
        found[kind] = apart, together
    return found


def two_devices(ms: float) -> Step:
    """A call with a product on each of two devices, whose launches take so many milliseconds."""
    device.device_names = lambda: {**_KNOWN(), "FAR": "tests.far_device:FarDevice"}  # type: ignore[assignment]
    names = [get_device(f"{name}?sleep_ns={int(ms * 1e6)}").name for name in _NAMES]
    first, second = (Tensor.ones(16, 16, device=name).contiguous().realize() for name in names)
    return lambda x: ((x.to(names[0]) @ first).to(names[1]) @ second).realize()


def seconds_of(order: Order, step: Step, calls: int) -> float:
    """Seconds of a call, of so many in this order; their results are checked."""
    inputs = [np.full((4, 16), n, np.float32) for n in range(calls)]
    start = time.perf_counter()
    results = order(step, inputs)
    took = (time.perf_counter() - start) / calls
    assert all((result == 256 * n).all() for n, result in enumerate(results))
    return took


def prepare(setup: Setup) -> Prepared:
    """The captured call in both orders."""
    calls, step = (3, jit(two_devices(0.1))) if setup.tiny else (20, jit(two_devices(10.0)))
    orders: dict[str, Order] = {"kernmill": _pipelined, "one after the other": _apart}
    for order in orders.values():  # lanes are used once both orders were timed as long
        seconds_of(order, step, calls)
    samplers = {name: partial(seconds_of, order, step, calls) for name, order in orders.items()}
    return Prepared(samplers, close=close)


def close() -> None:
    """End both processes, and forget the devices."""
    for name in _NAMES:
        close_device(name)
        device._options.pop(name, None)
    device.device_names = _KNOWN


DEVICE_ROWS = [
    Row("device_pipeline", "a call over two devices in other processes with 10 ms of work each, inputs pipelined",
        prepare, once=True, goals=(Goal("one after the other", 1.8),), most_rounds=5),
]  # fmt: skip


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
    main()
