"""Random optimizers: tensors that assignments change together, against NumPy, at once and replayed.

All values are small whole numbers, so that every dtype here holds them exactly and results must be equal.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernmill import Tensor, dtypes, jit

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


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_updates_on_llvm(seed: int) -> None:
    check(seed, "LLVM")


@pytest.mark.parametrize("seed", range(0, SEEDS, 8))
def test_random_updates_on_opencl(seed: int, opencl: str) -> None:
    check(seed, opencl)


@pytest.mark.parametrize("seed", range(1, SEEDS, 4))
def test_random_updates_on_python(seed: int) -> None:
    check(seed, "PYTHON")
