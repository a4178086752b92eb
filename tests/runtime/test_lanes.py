"""Calls over several devices in lanes: the values of one device, an order that no slow copy or kernel can disturb."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernmill import Context, Tensor, jit
from kernmill.ir import DeviceError, dtypes
from kernmill.runtime import Buffer, get_device, lanes, settle

Far = Callable[..., str]
X = np.arange(32, dtype=np.float32).reshape(8, 4)


@pytest.fixture
def eager_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call over several devices goes to the lanes, however short it is, from the third on."""
    monkeypatch.setattr(lanes, "_WORTH_NS", 0)


def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices of all tasks from here on."""
    found: list[str] = []
    real = lanes.submit

    def noted(device: str, *given: Any) -> Any:
        found.append(device)
        return real(device, *given)

    monkeypatch.setattr(lanes, "submit", noted)
    monkeypatch.setattr(lanes.__name__.rpartition(".")[0] + ".pipelined.submit", noted)
    return found


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("options", [{}, {"queueing": 1}, {"queueing": 1, "sleep_ns": 2_000_000}])
def test_results_are_those_of_one_device(
    far: Far, monkeypatch: pytest.MonkeyPatch, eager_lanes: None, captured: bool, options: dict[str, int]
) -> None:
    one, other = far(0, **options), far(1, **options)
    w = np.random.default_rng(0).integers(-3, 4, (4, 4)).astype(np.float32)
    first, second, third = Tensor(w, device=one), Tensor(w + 1, device=other), Tensor(w - 1)

    def call(x: Tensor) -> Tensor:
        y = (x.to(one) @ first).contiguous() @ first
        return ((y.to(other) @ second).to("LLVM") @ third + (y.sum() * 2).to("LLVM")).realize()

    step, tasks, waiting = jit(call) if captured else call, seen(monkeypatch), list[tuple[int, Tensor]]()
    for n in range(12):
        waiting.append((n, step(Tensor(X + n))))
        if len(waiting) > 2:
            k, got = waiting.pop(0)
            y = (X + k) @ w @ w
            np.testing.assert_array_equal(got.numpy(), y @ (w + 1) @ (w - 1) + y.sum() * 2)
    assert {one, other, "LLVM"} == {*tasks}


def test_a_call_that_is_short_stays_in_its_thread(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "_WORTH_NS", 1 << 62)
    name, tasks = far(), seen(monkeypatch)
    for n in range(5):
        assert (Tensor(X + n).to(name) + 1).to("LLVM").realize().numpy().tolist() == (X + n + 1).tolist()
    assert tasks == []


def test_state_in_place_over_devices(far: Far, eager_lanes: None) -> None:
    """A replay that overwrites what it read ends before it returns; other programs see the new values."""
    name = far()
    state, far_state = Tensor(X.copy()).realize(), Tensor(X.copy(), device=name).realize()

    @jit
    def step() -> Tensor:
        state.assign(state + far_state.to("LLVM"))
        far_state.assign(far_state + state.to(name))
        return state.sum().realize(far_state)

    a, b = X.copy(), X.copy()
    for _ in range(8):
        got = step()
        a = a + b
        b = b + a
        (state + 1).realize()
        np.testing.assert_array_equal(state.numpy(), a)
        np.testing.assert_array_equal(far_state.numpy(), b)
        assert got.item() == a.sum()


def test_memory_under_way_is_not_overwritten(far: Far, eager_lanes: None) -> None:
    """An input that a copy of a lane still has to read is written in place by the caller, eagerly and captured."""
    slow = far(0, latency_ns=5_000_000)
    x = Tensor(X.copy()).realize()
    bump = jit(lambda: x.assign(x + 1).realize())
    results = []
    for n in range(8):
        results.append((x.to(slow) * 2).realize())
        if n % 2:
            bump()
        else:
            x.assign(x + 1).realize()
    for n, result in enumerate(results):
        np.testing.assert_array_equal(result.numpy(), 2 * (X + n))


def test_a_device_that_dies_in_a_lane(far: Far, eager_lanes: None) -> None:
    """The error is that of whoever reads; the other device goes on."""
    one, other = far(0), far(1)
    first = Tensor(X.copy(), device=one).realize()

    def call() -> Tensor:
        return ((first + 1).to(other) * 2).realize()

    kept = [call() for _ in range(4)]
    settle()
    device: Any = get_device(one)
    device.process.kill()
    late = call()
    with pytest.raises(DeviceError, match=r"FAR: .* failed .*The device is lost, and so are its tensors"):
        late.numpy()
    assert kept[0].numpy().tolist() == (2 * (X + 1)).tolist()
    assert (Tensor(X, device=other) + 1).numpy().tolist() == (X + 1).tolist()


def test_settings_of_the_caller_hold_in_a_lane(far: Far, eager_lanes: None) -> None:
    name = far()
    with Context(THREADS=1):
        for n in range(5):
            y = (Tensor(X + n).to(name) + 1).to("LLVM") * 2
            assert y.realize().numpy().tolist() == (2 * (X + n + 1)).tolist()


def test_waits_reach_beyond_a_lane_for_copies_only(far: Far) -> None:
    one, other = far(0), far(1)
    a, b = (Buffer(one, dtypes.float32, 4, None, 4096 * n) for n in (1, 2))
    inside = Buffer(one, dtypes.float32, 2, a, a.address)
    c, d = (Buffer(other, dtypes.float32, 4, None, 4096 * n) for n in (1, 2))
    steps = [
        lanes.LaneStep(one, [b], [inside]),
        lanes.LaneStep(one, [b], [b]),
        lanes.LaneStep(other, [a], [c]),
        lanes.LaneStep(other, [c], [d]),
        lanes.LaneStep(one, [b], [inside]),
        lanes.LaneStep(one, [d], [b]),
    ]
    assert lanes.waits_of(steps) == [[], [], [0], [], [2], [3]]


def test_no_lane_waits_for_itself() -> None:
    inside = threading.Event()

    def run() -> None:
        settle()
        inside.set()

    lanes.submit("LLVM", run, (), None).wait()
    assert inside.is_set()


def test_random_pipelines(far: Far, eager_lanes: None) -> None:
    """Random chains over four devices, read in random order, some calls eager and some captured."""
    draw = random.Random(0)
    names = ["LLVM", far(0, queueing=1), far(1), far(2, queueing=1)]
    for _ in range(6):
        route = [draw.choice(names) for _ in range(5)]
        weights = [Tensor(np.float32(n + 2), device=name).realize() for n, name in enumerate(route)]

        def call(x: Tensor, route: list[str] = route, weights: list[Tensor] = weights) -> list[Tensor]:
            made = []
            for name, w in zip(route, weights, strict=True):
                x = (x.to(name) * w + 1).contiguous()
                made.append(x)
            made[0].realize(*made[1:])
            return [made[-1], made[2]]

        step: Any = draw.choice([call, jit(call)])
        waiting: list[tuple[int, list[Tensor]]] = []
        for n in range(8):
            waiting.append((n, step(Tensor(X + n))))
            while waiting and draw.random() < 0.5:
                k, (last, third) = waiting.pop(draw.randrange(len(waiting)))
                want = [X + k]
                for m in range(5):
                    want.append(want[-1] * (m + 2) + 1)
                np.testing.assert_array_equal(third.numpy(), want[3])
                np.testing.assert_array_equal(last.numpy(), want[5])
