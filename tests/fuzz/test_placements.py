"""Random programs placed at random over several devices: the values of one device, at once, captured, with gradients.

The rates of devices and links are drawn, so that a placement is as good as any other. In `test_updates` all values are
small integers: results are equal, whatever the order of sums.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from kernmill import Context, Tensor, jit
from kernmill.ir import DeviceSpec, DeviceTable, Link, UOp, dtypes, evaluate, reshape
from kernmill.runtime import device_list, device_rates, download, realize, upload
from tests.fuzz import test_graphs, test_updates

SEEDS = int(os.environ.get("FUZZ_SEEDS", "30"))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[random.Random]:
    """Every graph is placed by other rates."""
    draw = random.Random(0)

    def table(leaves: Sequence[str], nodes: Iterable[UOp]) -> DeviceTable:
        names = (*device_list(), *sorted({*leaves}.difference(device_list())))
        specs = [
            DeviceSpec(name).with_rates([10 ** draw.uniform(1, 4), *(10 ** draw.uniform(-2, 2) for _ in range(3))])
            for name in names
        ]
        links = {(a, b): Link(10 ** draw.uniform(0, 4), 10 ** draw.uniform(-2, 1)) for a in names for b in names}
        return DeviceTable(tuple(specs), links)

    monkeypatch.setattr(device_rates, "device_table", table)
    with Context(CACHE="0"):
        yield draw


def check_program(seed: int, names: Sequence[str]) -> None:
    """As `test_updates.check`, with each tensor on a device of its own."""
    draw = random.Random(seed)
    program = test_updates.Program(seed)
    arrays: dict[str, Any] = {name: array.copy() for name, array in program.start.items()}
    with Context(DEVICE=",".join(names)):
        tensors: dict[str, Any] = {
            name: Tensor(array.copy(), device=draw.choice(names)) for name, array in program.start.items()
        }
        tensors["g0"].realize(*tensors.values())

        def step() -> list[Tensor]:
            results = program.run(dict(tensors), is_numpy=False)
            results[0].realize(*results[1:])
            return results

        replayed: Callable[[], list[Tensor]] = jit(step)
        for call in (step, step, replayed, replayed, replayed):
            want, got = program.run(arrays, is_numpy=True), call()
            arrays = {name: arrays[name] for name in program.start}
            for right, result in zip(want, got, strict=True):
                np.testing.assert_array_equal(result.numpy().copy(), right)


class Maker(test_graphs.Maker):
    """Random expressions over inputs on several devices."""

    names: Sequence[str] = ()

    def input(self) -> UOp:
        shape = tuple(self.random.choice((1, 3, 8)) for _ in range(self.random.randint(1, 3)))
        array = self.values.uniform(-2, 2, shape).astype(np.float32)
        leaf = upload(array.reshape(-1), dtypes.float32, self.random.choice(self.names))
        self.data[leaf] = array.reshape(-1)
        self.pool.append(reshape(leaf, shape))
        return self.pool[-1]


def check_graph(seed: int, names: Sequence[str]) -> None:
    maker = type("Maker", (Maker,), {"names": names})(seed, names[0], 2_000)
    for _ in range(4 + seed % 9):
        root = maker.grow()
    expected = evaluate(root, maker.data)
    if not np.isfinite(expected).all() or np.abs(expected).max() > 1e5:
        pytest.skip("the random values overflow")
    with Context(DEVICE=",".join(names)):
        realize([root])
        got = download(root).reshape(root.shape)
    assert float(np.abs(got - expected).max(initial=0.0)) < 2e-4 * max(1.0, float(np.abs(expected).max(initial=0.0)))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_programs_over_two_devices(seed: int, drawn: random.Random) -> None:
    drawn.seed(seed)
    check_program(seed, ["LLVM", "PYTHON"])


@pytest.mark.parametrize("seed", range(0, SEEDS, 3))
def test_programs_over_far_devices(seed: int, drawn: random.Random, far: Any) -> None:
    drawn.seed(seed)
    check_program(seed, ["LLVM", far(0), far(1)])


@pytest.mark.parametrize("seed", range(0, SEEDS, 3))
def test_programs_with_opencl(seed: int, drawn: random.Random, opencl: str) -> None:
    drawn.seed(seed)
    check_program(seed, [opencl, "LLVM"])


@pytest.mark.parametrize("seed", range(2 * SEEDS))
def test_graphs_over_two_devices(seed: int, drawn: random.Random) -> None:
    drawn.seed(seed)
    check_graph(seed, ["LLVM", "PYTHON"])


def train(names: Sequence[str], where: Sequence[str]) -> list[Any]:
    """Losses and parameters of a few steps of Adam, captured."""
    from kernmill import nn

    rng = np.random.default_rng(0)
    with Context(DEVICE=",".join(names)):
        first, second = (
            Tensor(rng.standard_normal(shape).astype(np.float32) * 0.1, device=device, requires_grad=True)
            for shape, device in zip(((8, 16), (16, 4)), where, strict=False)
        )
        x = Tensor(rng.standard_normal((5, 8)).astype(np.float32), device=where[2])
        y = Tensor(rng.standard_normal((5, 4)).astype(np.float32), device=where[2])
        optimizer = nn.optim.Adam([first, second], lr=0.01)

        @jit
        def step() -> Tensor:
            optimizer.zero_grad()
            loss = (((x @ first).relu() @ second - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss

        losses = [step().item() for _ in range(5)]
        assert [first.device, second.device] == [*where[:2]]
        assert first.grad is not None
        assert first.grad.device == where[0]
        return [*losses, first.numpy().copy(), second.numpy().copy()]


def test_training_over_three_devices(drawn: random.Random, far: Any) -> None:
    alone = train(["LLVM"], ["LLVM"] * 3)
    for seed in range(4):
        drawn.seed(seed)
        names = ["LLVM", far(0), far(1)]
        for one, other in zip(alone, train(names, [names[seed % 3], names[2], names[1]]), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(0, 2 * SEEDS, 3))
def test_graphs_over_far_devices(seed: int, drawn: random.Random, far: Any) -> None:
    """Constants, and leaves that never change, are read on devices that cannot address each other's memory."""
    drawn.seed(seed)
    check_graph(seed, ["LLVM", far(0), far(1)])
