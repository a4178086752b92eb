"""Random graphs that work on rows: attention, norms, masks, products of bytes, and gradients through them.

The pieces of test_graphs.py seldom make a kernel keep a row for itself; these do. Sizes are 1 to 50, some inputs
narrow.
"""

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kernmill.autograd import gradient
from kernmill.ir import (
    Ops,
    UOp,
    const,
    dtypes,
    elementwise,
    evaluate,
    iota,
    numel,
    permute,
    print_uops,
    reduce_axes,
    reshape,
    shrink,
)
from kernmill.runtime import download, realize, upload
from tests.fuzz.test_graphs import Maker

SEEDS = int(os.environ.get("FUZZ_SEEDS", "40"))
F32 = dtypes.float32
PIECES = [
    *("attention", "softmax", "layer_norm", "causal", "centred", "normalized") * 3,
    *("matmul", "turned", "bytes", "unary", "binary", "reduce", "move", "residual") * 2,
]


class RowMaker(Maker):
    """Builds a random expression whose kernels keep rows."""

    pieces: tuple[str, ...] = tuple(PIECES)

    def input(self, *shape: int) -> UOp:
        """Values of any float dtype as float32, of this shape or a random one."""
        if not shape:
            shape = tuple(self.size() for _ in range(self.random.randint(2, 4)))
            while math.prod(shape) > self.limit:
                shape = shape[1:] if len(shape) > 2 else (shape[0], 2)
        dtype = self.random.choice([F32, F32, F32, dtypes.float16, dtypes.bfloat16])
        values = self.values.uniform(-2, 2, shape).astype(np.float16 if dtype is dtypes.float16 else np.float32)
        bits = values.view(np.uint32) & 0xFFFF0000 if dtype is dtypes.bfloat16 else values
        values = bits.view(values.dtype).reshape(-1)
        host = (values.view(np.uint32) >> 16).astype(np.uint16) if dtype is dtypes.bfloat16 else values
        leaf = upload(host, dtype, self.device)
        self.data[leaf] = values
        self.pool.append(reshape(leaf.cast(F32), shape))
        return self.pool[-1]

    def size(self) -> int:
        return self.random.choice([self.random.randint(1, 50), self.random.choice([1, 2, 8, 16, 17, 32])])

    def grow(self) -> UOp:
        pick = self.random.choice(self.pieces)
        source = self.random.choice(self.pool[-3:] if self.random.random() < 0.7 else self.pool)
        made = getattr(self, pick)(source)
        if 0 < int(numel(made.shape)) <= self.limit:  # type: ignore[arg-type]
            self.pool.append(made)
        return self.pool[-1]

    def axes(self, x: UOp) -> tuple[int, ...]:
        """The last axis mostly, else any."""
        rank = len(x.shape)
        if not rank or self.random.random() < 0.5:
            return (rank - 1,)
        return tuple(sorted(self.random.sample(range(rank), self.random.randint(1, rank))))

    def softmax(self, x: UOp) -> UOp:
        axes = self.axes(x)
        e = elementwise(Ops.SUB, x, reduce_axes(x, Ops.MAX, axes)).alu(Ops.EXP)
        pick = self.random.randrange(3)
        if pick == 0:
            return elementwise(Ops.DIV, e, reduce_axes(e, Ops.ADD, axes))
        if pick == 1:  # the expectation of x
            return elementwise(Ops.DIV, reduce_axes(e * x, Ops.ADD, axes), reduce_axes(e, Ops.ADD, axes))
        return elementwise(
            Ops.SUB, elementwise(Ops.SUB, x, reduce_axes(x, Ops.MAX, axes)), reduce_axes(e, Ops.ADD, axes).alu(Ops.LOG)
        )

    def layer_norm(self, x: UOp) -> UOp:
        axes = self.axes(x)
        share = 1 / math.prod(int(x.shape[axis]) for axis in axes)  # type: ignore[arg-type, misc]
        centred = elementwise(Ops.SUB, x, reduce_axes(x, Ops.ADD, axes) * share)
        variance = reduce_axes(centred * centred, Ops.ADD, axes) * share
        return elementwise(Ops.DIV, centred, (variance + 0.1).alu(Ops.SQRT))

    def seen(self, x: UOp) -> UOp:
        """The lower triangle of the last two axes, moved a little."""
        rows, columns = x.shape[-2:]
        shift = self.random.choice([0, 0, 1, 3])
        return elementwise(
            Ops.LE, reshape(iota(columns), (1, columns)), reshape(iota(rows) + shift, (rows, 1))
        )  # fmt: skip

    def causal(self, x: UOp) -> UOp:
        if len(x.shape) < 2:
            return self.softmax(x)
        hidden = self.random.choice([-math.inf, -math.inf, 0.0])
        masked = elementwise(Ops.WHERE, self.seen(x), x, const(F32, hidden))
        last = len(x.shape) - 1
        e = elementwise(Ops.SUB, masked, reduce_axes(masked, Ops.MAX, (last,))).alu(Ops.EXP)
        return elementwise(Ops.DIV, e, reduce_axes(e, Ops.ADD, (last,)))

    def product(self, a: UOp, b: UOp) -> UOp:
        """a (..., m, k) times b (..., n, k) transposed."""
        *batch, m, k = a.shape
        n = b.shape[-2]
        left, right = reshape(a, (*batch, m, 1, k)), reshape(b, (*b.shape[:-2], 1, n, k))
        made = reduce_axes(elementwise(Ops.MUL, left, right), Ops.ADD, (len(batch) + 2,))
        return reshape(made, (*batch, m, n))

    def attention(self, x: UOp) -> UOp:
        if len(x.shape) < 2:
            return self.softmax(x)
        *batch, rows, inner = (int(s) for s in x.shape)  # type: ignore[arg-type]
        heads = self.random.choice([h for h in (1, 2, 3, 4) if inner % h == 0])
        if heads > 1 and len(batch) < 2:
            split = reshape(x, (*batch, rows, heads, inner // heads))
            order = [*range(len(batch)), len(batch) + 1, len(batch), len(batch) + 2]
            x, batch, inner = permute(split, order), [*batch, heads], inner // heads
        others = [self.random.choice([x, x * 0.5, self.like(x), self.like(x)]) for _ in range(2)]
        keys, values = others
        if self.random.random() < 0.4:  # more or fewer keys than queries
            count = self.size()
            keys, values = (self.input(*batch, count, inner) for _ in range(2))
        scores = self.product(x, keys) * (1 / math.sqrt(inner))
        pick = self.random.randrange(4)
        last = len(scores.shape) - 1
        seen = self.seen(scores)
        if pick < 2:
            scores = elementwise(Ops.WHERE, seen, scores, const(F32, -math.inf))
        e = elementwise(Ops.SUB, scores, reduce_axes(scores, Ops.MAX, (last,))).alu(Ops.EXP)
        total = reduce_axes(e, Ops.ADD, (last,))
        swapped = permute(values, (*range(len(batch)), len(batch) + 1, len(batch)))
        if pick % 2:  # divided by the sums first, or at the end
            return self.product(elementwise(Ops.DIV, e, total), swapped)
        return elementwise(Ops.DIV, self.product(e, swapped), total)

    def like(self, x: UOp) -> UOp:
        return self.input(*(int(s) for s in x.shape))  # type: ignore[arg-type]

    def matmul(self, x: UOp) -> UOp:
        if len(x.shape) < 2:
            return super().matmul(x)
        return self.product(x, self.input(self.size(), int(x.shape[-1])))  # type: ignore[arg-type]

    def centred(self, x: UOp) -> UOp:
        """A product of rows that is read several times."""
        made = self.matmul(x)
        axes = self.axes(made)
        return elementwise(Ops.SUB, made, reduce_axes(made, self.random.choice([Ops.ADD, Ops.MAX]), axes)) * 0.1

    def normalized(self, x: UOp) -> UOp:
        """Something dear, used twice along its rows."""
        dear = (x * 0.25).alu(Ops.TANH).alu(self.random.choice([Ops.EXP, Ops.SIN]))
        axes = self.axes(x)
        other = reduce_axes(elementwise(Ops.MUL, dear, dear), Ops.ADD, axes)
        return elementwise(Ops.DIV, dear, other + 1.0)

    def residual(self, x: UOp) -> UOp:
        same = [y for y in self.pool if y.shape == x.shape]
        return x + self.random.choice(same)

    def turned(self, x: UOp) -> UOp:
        """A transpose, and often a sum or a softmax over what then lies far apart."""
        order = self.random.sample(range(len(x.shape)), len(x.shape))
        made = permute(x, order)
        pick = self.random.randrange(4)
        if pick == 0:
            return reduce_axes(made, Ops.ADD, self.axes(made))
        if pick == 1:
            return self.softmax(made)
        if pick == 2 and len(made.shape) > 1 and int(made.shape[-1]) % 2 == 0:  # type: ignore[arg-type]
            halves = reshape(made, (*made.shape[:-1], made.shape[-1] // 2, 2))
            parts = [shrink(halves, [*((0, s) for s in halves.shape[:-1]), (n, n + 1)]) for n in (0, 1)]
            return reshape(parts[0] * 0.5 - parts[1], halves.shape[:-1])
        return made

    def bytes(self, x: UOp) -> UOp:
        """A product of small integers, as floats that are added to nothing else."""
        rows, columns, inner = (self.size() for _ in range(3))
        kinds = [self.random.choice([dtypes.int8, dtypes.uint8]) for _ in range(2)]
        sides = [self.small(kind, shape) for kind, shape in zip(kinds, ((rows, inner), (columns, inner)), strict=True)]
        made = self.product(*(side.cast(dtypes.int32) for side in sides)).cast(F32)
        return made * (1 / (inner * 1000))

    def small(self, kind: Any, shape: Sequence[int]) -> UOp:
        low, high = (-128, 128) if kind is dtypes.int8 else (0, 256)
        values = self.values.integers(low, high, math.prod(shape)).astype(kind.name)
        leaf = upload(values, kind, self.device)
        self.data[leaf] = values
        if self.random.random() < 0.3:
            return permute(reshape(leaf, tuple(reversed(shape))), (1, 0))
        return reshape(leaf, tuple(shape))


class MaskMaker(RowMaker):
    """The same with sums over triangles: above or below a diagonal that may miss some rows, or of rows by columns."""

    pieces = ("triangle", "triangle", "causal", "attention", "softmax", "centred", "residual")

    def triangle(self, x: UOp) -> UOp:
        if len(x.shape) < 2:
            return self.softmax(x)
        rows, columns = x.shape[-2:]
        shift = self.random.randint(-12, 12)
        sides = [reshape(iota(columns), (1, columns)), reshape(iota(rows) + shift, (rows, 1))]
        seen = elementwise(self.random.choice([Ops.LE, Ops.LT]), *self.random.sample(sides, 2))
        last = len(x.shape) - 1
        if self.random.random() < 0.4:  # a product whose terms end with the column of the result
            weights = elementwise(Ops.MUL, self.softmax(x), x)
            right = reshape(self.input(int(columns), 20), (columns, 20))  # type: ignore[arg-type]
            terms = elementwise(Ops.MUL, reshape(weights, (*x.shape, 1)), right)
            ends = elementwise(Ops.LE, reshape(iota(columns), (columns, 1)), reshape(iota(20) + shift, (1, 20)))
            gated = elementwise(Ops.WHERE, ends, terms, const(F32, 0.0))
            return reshape(reduce_axes(gated, Ops.ADD, (last,)), (*x.shape[:-1], 20))
        dear = (x * 0.3).alu(Ops.EXP) if self.random.random() < 0.5 else self.softmax(x)
        gated = elementwise(Ops.WHERE, seen, elementwise(Ops.MUL, dear, x), const(F32, 0.0))
        total = reduce_axes(gated, Ops.ADD, (self.random.choice([last, last - 1]),))
        return elementwise(Ops.DIV, gated, total.alu(Ops.ABS) + 1.0) if self.random.random() < 0.6 else total


def agree(roots: list[UOp], data: dict[UOp, Any], note: str) -> None:
    # evaluated in float64: what is right, not what float32 makes of it in some order
    expected = [evaluate(root, data) for root in roots]
    if any(not np.isfinite(one).all() or np.abs(one).max(initial=0.0) > 1e5 for one in expected):
        pytest.skip("the random values overflow")
    realize(roots)
    for root, want in zip(roots, expected, strict=True):
        got = download(root).reshape(root.shape)
        worst = float(np.abs(got - want).max()) / max(1.0, float(np.abs(want).max()))
        assert worst < 5e-4, f"{note}: off by {worst}\n{print_uops(root)}"


def check(seed: int, device: str, steps: int, limit: int, kind: type[RowMaker] = RowMaker) -> None:
    maker = kind(seed, device, limit)
    for _ in range(steps):
        root = maker.grow()
    agree([root, *maker.pool[-2:-1]][: 1 + seed % 2], maker.data, f"seed {seed}")


def check_gradient(seed: int, device: str, steps: int, limit: int) -> None:
    maker = RowMaker(seed, device, limit)
    for _ in range(steps):
        root = maker.grow()
    leaves = [leaf for leaf in root.toposort() if leaf in maker.data and leaf.dtype.is_float]
    inputs = [leaf.cast(F32) if leaf.dtype is not F32 else leaf for leaf in leaves]
    weight = maker.values.uniform(-1, 1, tuple(map(int, root.shape))).astype(np.float32)  # type: ignore[arg-type]
    leaf = upload(weight.reshape(-1), F32, device)
    maker.data[leaf] = weight.reshape(-1)
    found = gradient(root, reshape(leaf, root.shape), inputs)
    if not found:
        pytest.skip("a graph without float inputs")
    agree(list(found.values()), maker.data, f"seed {seed}")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_rows_on_llvm(seed: int) -> None:
    check(seed, "LLVM", 1 + seed % 6, 20_000)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_triangles_on_llvm(seed: int) -> None:
    check(seed, "LLVM", 1 + seed % 4, 20_000, MaskMaker)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_gradients_on_llvm(seed: int) -> None:
    check_gradient(seed, "LLVM", 1 + seed % 4, 6_000)


@pytest.mark.parametrize("seed", range(0, SEEDS, 8))
def test_random_rows_on_opencl(seed: int, opencl: str) -> None:
    check(seed, opencl, 1 + seed % 6, 20_000)


@pytest.mark.parametrize("seed", range(0, SEEDS, 4))
def test_random_rows_on_groups_of_work_items(seed: int, small_groups: None) -> None:
    check(seed, "PYTHON", 1 + seed % 4, 300, MaskMaker if seed % 8 else RowMaker)


@pytest.mark.parametrize("seed", range(0, SEEDS, 4))
def test_random_rows_on_python(seed: int) -> None:
    check(seed, "PYTHON", 1 + seed % 4, 300)


@pytest.mark.parametrize("seed", [28, 57])
def test_rows_kept_inside_of_rows_have_lanes_of_one_loop(seed: int) -> None:
    """Once refused: lanes of a loop that some rows are kept for, and of the loop that fills them."""
    check(seed, "LLVM", 1 + seed % 6, 20_000)
