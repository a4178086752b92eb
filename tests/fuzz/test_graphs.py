"""Random graphs: every device agrees with the evaluator, whatever fuses and whichever schedule is chosen."""

import os
import random
from typing import Any

import numpy as np
import pytest

from kernmill.ir import (
    Ops,
    UOp,
    assign,
    broadcast_to,
    const,
    dtypes,
    elementwise,
    evaluate,
    iota,
    numel,
    pad,
    permute,
    print_uops,
    reduce_axes,
    reshape,
    shrink,
    strided,
    take,
    unwindow,
    window,
)
from kernmill.runtime import download, realize, upload

SEEDS = int(os.environ.get("FUZZ_SEEDS", "40"))
SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 33)


class Maker:
    """Builds a random expression over a few float32 inputs, small enough for the PYTHON device."""

    def __init__(self, seed: int, device: str, limit: int) -> None:
        self.random = random.Random(seed)
        self.values = np.random.default_rng(seed)
        self.device = device
        self.limit = limit
        self.data: dict[UOp, Any] = {}
        self.pool: list[UOp] = []
        for _ in range(3):
            self.input()

    def input(self) -> UOp:
        shape = tuple(self.random.choice(SIZES) for _ in range(self.random.randint(1, 3)))
        while int(np.prod(shape)) > self.limit:
            shape = shape[:-1] or (4,)
        array = self.values.uniform(-2, 2, shape).astype(np.float32)
        leaf = upload(array.reshape(-1), dtypes.float32, self.device)
        self.data[leaf] = array.reshape(-1)
        self.pool.append(reshape(leaf, shape))
        return self.pool[-1]

    def grow(self) -> UOp:
        made = getattr(self, self.random.choice(
            ["unary"] * 2 + ["binary"] * 3 + ["reduce"] * 2 + ["move"] * 3 + ["matmul", "softmax",
             "windowed", "taken", "compare", "stored", "assigned"]))(self.random.choice(self.pool))  # fmt: skip
        if made.shape and 0 < int(numel(made.shape)) <= self.limit:  # type: ignore[arg-type]
            self.pool.append(made)
        return self.pool[-1]

    def unary(self, x: UOp) -> UOp:
        op = self.random.choice([Ops.NEG, Ops.ABS, Ops.EXP, Ops.TANH, Ops.SIN, Ops.FLOOR, Ops.SQRT])
        if op is Ops.EXP:
            x = elementwise(Ops.MIN, x, const(dtypes.float32, 3.0))
        if op is Ops.SIN:
            x = elementwise(Ops.MAX, elementwise(Ops.MIN, x, const(dtypes.float32, 50.0)), const(dtypes.float32, -50.0))
        if op is Ops.SQRT:
            x = x.alu(Ops.ABS)
        return x.alu(op)

    def binary(self, x: UOp) -> UOp:
        op = self.random.choice([Ops.ADD, Ops.SUB, Ops.MUL, Ops.MAX, Ops.MIN])
        other = self.random.choice(
            [y for y in self.pool if y.shape == x.shape] + [const(dtypes.float32, self.random.uniform(-2, 2))]
        )
        if self.random.random() < 0.3:
            axis = self.random.randrange(len(x.shape))
            other = broadcast_to(reduce_axes(x, Ops.ADD, (axis,)) * 0.1, x.shape)
        return elementwise(op, x, other)

    def reduce(self, x: UOp) -> UOp:
        axes = [axis for axis in range(len(x.shape)) if self.random.random() < 0.5] or [0]
        made = reduce_axes(x, self.random.choice([Ops.ADD, Ops.MAX, Ops.MIN]), axes)
        return (
            made
            if self.random.random() < 0.5
            else reshape(made, tuple(s for i, s in enumerate(x.shape) if i not in axes) or (1,))
        )

    def move(self, x: UOp) -> UOp:
        pick = self.random.randrange(6)
        rank = len(x.shape)
        sizes = [int(s) for s in x.shape]  # type: ignore[arg-type]
        if pick == 0:
            return permute(x, self.random.sample(range(rank), rank))
        if pick == 1:
            return pad(x, [(self.random.randint(0, 2), self.random.randint(0, 2)) for _ in sizes])
        if pick == 2:
            bounds = []
            for size in sizes:
                start = self.random.randint(0, size - 1)
                bounds.append((start, self.random.randint(start + 1, size)))
            return shrink(x, bounds)
        if pick == 3:
            return strided(x, [self.random.choice([1, 1, -1, 2, -2, 3]) for _ in sizes])
        if pick == 4:
            total = int(np.prod(sizes))
            divisors = [d for d in range(1, total + 1) if total % d == 0]
            first = self.random.choice(divisors)
            return reshape(x, (first, total // first))
        axis = self.random.randrange(rank + 1)
        wide = (*x.shape[:axis], 1, *x.shape[axis:])
        return broadcast_to(reshape(x, wide), (*x.shape[:axis], self.random.choice([2, 3, 5]), *x.shape[axis:]))

    def matmul(self, x: UOp) -> UOp:
        size = int(x.shape[-1])  # type: ignore[arg-type]
        columns = self.random.choice(SIZES)
        array = self.values.uniform(-1, 1, (size, columns)).astype(np.float32)
        leaf = upload(array.reshape(-1), dtypes.float32, self.device)
        self.data[leaf] = array.reshape(-1)
        rows = int(numel(x.shape)) // size  # type: ignore[arg-type]
        left = reshape(x, (rows, 1, size))
        right = reshape(permute(reshape(leaf, (size, columns)), (1, 0)), (1, columns, size))
        return reshape(reduce_axes(elementwise(Ops.MUL, left, right), Ops.ADD, (2,)), (rows, columns))

    def softmax(self, x: UOp) -> UOp:
        axis = self.random.randrange(len(x.shape))
        e = elementwise(Ops.SUB, x, reduce_axes(x, Ops.MAX, (axis,))).alu(Ops.EXP)
        return elementwise(Ops.DIV, e, reduce_axes(e, Ops.ADD, (axis,)))

    def windowed(self, x: UOp) -> UOp:
        axis = self.random.randrange(len(x.shape))
        length = int(x.shape[axis])  # type: ignore[arg-type]
        size, stride, dilation = self.random.randint(1, 3), self.random.randint(1, 2), self.random.randint(1, 2)
        if dilation * (size - 1) + 1 > length:
            return x
        made = window(x, axis, size, stride, dilation)
        if self.random.random() < 0.5:
            made = unwindow(made, axis, length, stride, dilation)
        return reduce_axes(made, self.random.choice([Ops.ADD, Ops.MAX]), (len(made.shape) - 1,))

    def taken(self, x: UOp) -> UOp:
        axis = self.random.randrange(len(x.shape))
        index = self.values.integers(0, int(x.shape[axis]), (self.random.randint(1, 5),))  # type: ignore[arg-type]
        leaf = upload(index.astype(np.int64), dtypes.int64, self.device)
        self.data[leaf] = index.astype(np.int64)
        return take(x, leaf, axis)

    def compare(self, x: UOp) -> UOp:
        places = broadcast_to(iota(x.shape[-1]), x.shape)
        return elementwise(
            Ops.WHERE, elementwise(Ops.LT, places, const(dtypes.int64, 3)), x, const(dtypes.float32, 0.5)
        )

    def stored(self, x: UOp) -> UOp:
        return UOp(Ops.CONTIGUOUS, x.dtype, (x,))

    def assigned(self, x: UOp) -> UOp:
        region = tuple((0, int(s), self.random.choice([1, 2])) for s in x.shape)  # type: ignore[arg-type]
        return assign(x, const(dtypes.float32, 7.0), region)


def check(seed: int, device: str, steps: int, limit: int) -> None:
    maker = Maker(seed, device, limit)
    for _ in range(steps):
        root = maker.grow()
    # evaluated in float64: what is right, not what float32 makes of it in some order
    expected = evaluate(root, maker.data)
    if not np.isfinite(expected).all() or np.abs(expected).max() > 1e5:
        pytest.skip("the random values overflow")
    realize([root])
    got = download(root).reshape(root.shape)
    scale = max(1.0, float(np.abs(expected).max()))
    worst = float(np.abs(got - expected).max()) / scale
    assert worst < 2e-4, f"seed {seed}: off by {worst}\n{print_uops(root)}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_graph_on_llvm(seed: int) -> None:
    check(seed, "LLVM", 4 + seed % 12, 20_000)


@pytest.mark.parametrize("seed", range(0, SEEDS, 8))
def test_random_graph_on_opencl(seed: int, opencl: str) -> None:
    check(seed, opencl, 4 + seed % 12, 20_000)


@pytest.mark.parametrize("seed", range(0, SEEDS, 4))
def test_random_graph_on_groups_of_work_items(seed: int, small_groups: None) -> None:
    check(seed, "PYTHON", 3 + seed % 6, 600)


@pytest.mark.parametrize("seed", range(0, SEEDS, 4))
def test_random_graph_on_python(seed: int) -> None:
    check(seed, "PYTHON", 3 + seed % 6, 300)
