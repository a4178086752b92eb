"""Random optimizers: tensors that assignments change together, against NumPy, at once and replayed.

All values are small whole numbers, so that every dtype here holds them exactly and results must be equal.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from kernmill import KernmillError, Tensor, dtypes, jit
from tests.fuzz.test_captures import is_refusal

SEEDS = int(os.environ.get("FUZZ_SEEDS", "40"))
SHAPES = ((1,), (7,), (64,), (3, 5), (6, 6), (16, 33), (40, 40), (2, 3, 17), (33, 1, 20), (0, 4))
DTYPES = ("float32", "float32", "float32", "float64", "int32", "int16", "float16")
Array = np.ndarray[Any, Any]
Values = dict[str, Any]  # Tensors or arrays
Statement = Callable[[Values, bool], None]  # is it NumPy?


def limited(x: Any) -> Any:
    """Between -31 and 31: products of two stay exact in float16."""
    return x.clip(-31, 31) if isinstance(x, np.ndarray) else x.clamp(-31, 31)


def converted(x: Any, dtype: str) -> Any:
    return x.astype(dtype) if isinstance(x, np.ndarray) else x.cast(getattr(dtypes, dtype))


def moved(x: Any, how: str) -> Any:
    """The same shape, read at other places."""
    if how == "flip":
        return x[::-1] if isinstance(x, np.ndarray) else x.flip(0)
    if how == "sum":
        total = x.astype(np.float64).sum(-1, keepdims=True) if isinstance(x, np.ndarray) else x.sum(-1, keepdim=True)
        return limited(converted(total, str(x.dtype) if isinstance(x, np.ndarray) else x.dtype.name)) + x * 0
    return x.swapaxes(-1, -2) if isinstance(x, np.ndarray) else x.transpose(-1, -2)


class Program:
    """Statements over named values of one shape: inputs `g0..`, states `s0..`, temporaries `t0..`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        rng = np.random.default_rng(seed)
        self.shape = self.random.choice(SHAPES)
        names = [f"g{n}" for n in range(self.random.randint(1, 2))] + [
            f"s{n}" for n in range(self.random.randint(1, 4))
        ]
        self.dtypes = {name: self.random.choice(DTYPES) for name in names}
        self.start = {name: rng.integers(-9, 10, self.shape).astype(self.dtypes[name]) for name in names}
        self.statements: list[Statement] = []
        for _ in range(self.random.randint(2, 8)):
            self.statements.append(
                getattr(self, self.random.choice(["update"] * 4 + ["region", "temporary", "again"]))()
            )

    def value(self, dtype: str) -> Callable[[Values], Any]:
        """An expression of that dtype, of values there are now; mostly read at their own place."""
        names = self.random.sample(sorted(self.dtypes), min(len(self.dtypes), self.random.randint(1, 3)))
        hows = [
            "",
            "",
            "",
            "",
            "",
            "flip",
            "sum",
            *(["turn"] * (len(self.shape) > 1 and self.shape[-1] == self.shape[-2])),
        ]
        ways = [self.random.choice(hows) for _ in names]
        ops = [self.random.choice("+-*>") for _ in names]
        factor = self.random.randint(-2, 3)

        def expression(values: Values) -> Any:
            total: Any = None
            for name, how, op in zip(names, ways, ops, strict=True):
                x = converted(moved(values[name], how) if how else values[name], dtype)
                if total is None:
                    total = x * factor
                elif op == ">":
                    total = np.maximum(total, x) if isinstance(x, np.ndarray) else total.maximum(x)
                else:
                    total = total + x if op == "+" else total - x if op == "-" else total * x
                total = limited(total)
            return total

        return expression

    def update(self) -> Statement:
        name = self.random.choice([n for n in self.dtypes if n[0] == "s"])
        value = self.value(self.dtypes[name])

        def run(values: Values, is_numpy: bool) -> None:
            new = value(values)
            if is_numpy:
                values[name] = new
            else:
                values[name].assign(new)

        return run

    def region(self) -> Statement:
        """A part of a state, from the same part of an expression."""
        name = self.random.choice([n for n in self.dtypes if n[0] == "s"])
        value, size = self.value(self.dtypes[name]), self.shape[0]
        start = self.random.randint(0, size - 1) if size else 0
        part = slice(start, self.random.randint(start, size), self.random.choice([1, 1, 2]))

        def run(values: Values, is_numpy: bool) -> None:
            new = value(values)[part]
            if is_numpy:
                values[name] = values[name].copy()
            values[name][part] = new

        return run

    def temporary(self) -> Statement:
        name, dtype = f"t{len(self.dtypes)}", self.random.choice(DTYPES)
        value = self.value(dtype)
        self.dtypes[name] = dtype

        def run(values: Values, is_numpy: bool) -> None:
            values[name] = value(values)

        return run

    def again(self) -> Statement:
        """A temporary that is stored on purpose."""
        before = self.temporary()
        name = list(self.dtypes)[-1]

        def run(values: Values, is_numpy: bool) -> None:
            before(values, is_numpy)
            if not is_numpy:
                values[name] = values[name].contiguous()

        return run

    def run(self, values: Values, is_numpy: bool) -> list[Any]:
        """All statements; then what is read: all states, and some of the temporaries."""
        for statement in self.statements:
            statement(values, is_numpy)
        return [values[name] for n, name in enumerate(self.dtypes) if name[0] == "s" or (name[0] == "t" and n % 2)]


def check(seed: int, device: str) -> None:
    program = Program(seed)
    arrays: Values = {name: array.copy() for name, array in program.start.items()}
    tensors: Values = {name: Tensor(array.copy(), device=device) + 0 for name, array in program.start.items()}
    tensors["g0"].realize(*tensors.values())

    def step() -> list[Tensor]:
        results = program.run(dict(tensors), is_numpy=False)
        results[0].realize(*results[1:])
        return results

    replayed = jit(step)
    for call in (step, step, replayed, replayed, replayed, replayed):
        want, got = program.run(arrays, is_numpy=True), call()
        arrays = {name: arrays[name] for name in program.start}
        for right, result in zip(want, got, strict=True):
            np.testing.assert_array_equal(result.numpy().copy(), right)


class State:
    """Places that a captured function reads, writes and exchanges tensors at."""

    def __init__(self, rng: random.Random, device: str) -> None:
        self.device = device
        self.a, self.b, self.c = (self.tensor(rng) for _ in range(3))

    def tensor(self, rng: random.Random) -> Tensor:
        """Stored, not realized, or a constant."""
        value, kind = float(rng.randint(-9, 9)), rng.randrange(3)
        if kind == 2:
            return Tensor.full((3,), value, device=self.device)
        made = Tensor(np.array([value, 1.0, 2.0], np.float32), device=self.device)
        return made.realize() if kind else made + 1.0


def _assigns(m: State, x: Tensor) -> Tensor:
    m.a.assign(limited(m.a + x))
    return m.b * 2.0 - m.c


def _rebinds(m: State, x: Tensor) -> tuple[Tensor, Tensor]:
    old = m.b
    m.b = limited(old - x)
    return old, m.a + m.c


def _swaps(m: State, x: Tensor) -> Tensor:
    m.a, m.c = m.c, m.a
    return m.a + x


def _unites(m: State, x: Tensor) -> Tensor:
    m.c.assign(limited(m.c * 2.0 - x))
    result = m.b + m.a
    m.b = m.c
    return result


FUNCTIONS: tuple[Callable[[State, Tensor], Any], ...] = (_assigns, _rebinds, _swaps, _unites)


def mutate(m: State, rng: random.Random) -> None:
    """What a user may do to the state between two calls."""
    one, other = rng.sample("abc", 2)
    first, second = getattr(m, one), getattr(m, other)
    kind = rng.randrange(7)
    if kind == 0:
        setattr(m, one, second)
    elif kind == 1:
        setattr(m, one, m.tensor(rng))
    elif kind == 2:
        first.replace(m.tensor(rng))
    elif kind == 3:
        first.assign(m.tensor(rng))
    elif kind == 4:
        setattr(m, one, second.detach())
    elif kind == 5:
        first.assign(limited(second + 1.0)).realize()
    else:
        first[0:1] = 5.0


def life(seed: int, device: str, wrap: Callable[[Any], Any]) -> list[Any]:
    """What calls of two functions give, with another shape and changes of the state in between; last what was kept."""
    rng = random.Random(seed)
    m = State(rng, device)
    calls = [wrap(partial(function, m)) for function in rng.sample(FUNCTIONS, 2)]
    inputs = [Tensor(np.ones(shape, np.float32), device=device).realize() for shape in ((3,), (3,), (1,))]
    found: list[Any] = []
    kept: list[Tensor] = []
    for _ in range(rng.randint(8, 30)):
        if rng.random() < 0.3:
            mutate(m, rng)
            continue
        call, x = rng.choice(calls), rng.choice(inputs)
        results = call(x)
        results = results if isinstance(results, tuple) else (results,)
        if rng.random() < 0.7:
            found += [result.numpy().tolist() for result in results]
        if rng.random() < 0.4:
            kept += results
    return [*found, *(t.numpy().tolist() for t in (*kept, m.a, m.b, m.c))]


def test_random_changes_of_the_state_between_replays() -> None:
    """Constants, one tensor at several places, other signatures: what a replay gives is what plain calls give."""
    compared = 0
    for seed in range(SEEDS // 2):
        try:
            found = life(seed, "LLVM", jit)
        except KernmillError as error:
            if not is_refusal(error):
                raise
            continue
        assert found == life(seed, "LLVM", lambda function: function), seed
        compared += 1
    assert compared >= SEEDS // 8


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_updates_on_llvm(seed: int) -> None:
    check(seed, "LLVM")


@pytest.mark.parametrize("seed", range(0, SEEDS, 8))
def test_random_updates_on_opencl(seed: int, opencl: str) -> None:
    check(seed, opencl)


@pytest.mark.parametrize("seed", range(1, SEEDS, 4))
def test_random_updates_on_python(seed: int) -> None:
    check(seed, "PYTHON")
