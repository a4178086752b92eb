"""`python -m bench.sizes`: tensor programs of random sizes, in turn with torch eager: where is a rule of thumb far off?

The rows of the table are sizes that people measure; users have others. What it prints are the worst ratios, so that
the next look goes there, and their geometric mean; programs that take less than 30 us are in the mean only, since they
tell of calls. Results are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from statistics import geometric_mean
from types import SimpleNamespace
from typing import Any

from .__main__ import unless_cut_off
from .figures import digits, show_seconds
from .machine import machine, machine_line
from .table import as_row
from .timing import call_sampler, interleave

__all__ = ["FAMILIES", "Line", "lines_of", "main", "markdown"]

_MOST_WORK = 3e8  # multiply-adds: a line takes milliseconds
_MOST_ELEMENTS = 2_000_000
_LEAST_S = 3e-5  # of kernmill's: below, most of it is the call
_SIZES = (1, 2, 3, 4, 7, 16, 17, 30, 64, 100, 256, 1000, 4096)
_ROUNDS = 7
_SAMPLE_S = 0.002

Program = Callable[..., Any]  # of functions, kernmill's or torch's, and tensors


@dataclass(frozen=True)
class Case:
    """What to run, on tensors of random floats of these shapes; of whole numbers below `below`, where it is not 0."""

    what: str
    shapes: Sequence[tuple[int, ...]]
    run: Program
    below: Sequence[int] = ()
    work: float = 0.0  # multiply-adds, where there are products
    dtype: str = "float32"  # of the other tensors
    is_training: bool = False  # asked for are the gradients of the mean of its squares, for each tensor


@dataclass(frozen=True)
class Line:
    """One program; times in seconds, the least of the rounds."""

    what: str
    kernmill_s: float
    torch_s: float
    is_right: bool

    @property
    def ratio(self) -> float:
        """How much faster kernmill is."""
        return self.torch_s / self.kernmill_s


def _shape(rng: random.Random, dims: Sequence[int]) -> tuple[int, ...]:
    while True:
        shape = tuple(rng.choice(_SIZES) for _ in range(rng.choice(dims)))
        if 500 <= math.prod(shape) <= _MOST_ELEMENTS:
            return shape


def _x(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def _products(rng: random.Random) -> Case:
    rows, columns, terms = (rng.choice([1, 2, 3, 5, 8, 9, 12, 17, 24, 33, 48, 64, 100, 250]),
                            rng.choice([7, 16, 30, 64, 100, 128, 500, 1000, 3000]),
                            rng.choice([3, 5, 16, 33, 64, 128, 300, 784, 1024, 4096]))  # fmt: skip
    batch, is_turned, is_right_turned = (
        rng.choice([1, 1, 8]),
        *rng.choice([(False, False), (False, True), (True, False)]),
    )
    left = (batch, terms, rows) if is_turned else (batch, rows, terms)
    right = (batch, columns, terms) if is_right_turned else (batch, terms, columns)

    def run(f: Any, a: Any, b: Any) -> Any:
        return (a.transpose(1, 2) if is_turned else a) @ (b.transpose(1, 2) if is_right_turned else b)

    what = f"{_x(left)} {'T ' if is_turned else ''}@ {_x(right)}{' T' if is_right_turned else ''}"
    return Case(what, [left, right], run, work=batch * rows * columns * terms)


_FORMULAS = ("ab,bc,cd->ad", "bhqd,bhkd->bhqk", "bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "abc,cd->abd", "abc,adc->bd",
             "ab,ab->a", "ab,cb->abc", "abc,bcd->ad", "ab,ac->bc", "abcd,bd->ac", "abc,dc->bad")  # fmt: skip


def _einsums(rng: random.Random) -> Case:
    formula = rng.choice(_FORMULAS)
    size = {name: rng.choice([2, 3, 8, 12, 16, 33, 64, 100, 256]) for name in sorted(set(formula) - set(",->"))}
    shapes = [tuple(size[name] for name in term) for term in formula.split("->")[0].split(",")]
    return Case(
        f"einsum {formula} {', '.join(map(_x, shapes))}",
        shapes,
        lambda f, *x: f.einsum(formula, *x),
        work=math.prod(size.values()),
    )


_ROW_PROGRAMS: dict[str, Callable[..., Any]] = {
    "sum": lambda f, x, axis: x.sum(axis),
    "mean of squares": lambda f, x, axis: (x * x).mean(axis),
    "max": lambda f, x, axis: x.amax(axis),
    "var": lambda f, x, axis: x.var(axis),
    "std, kept": lambda f, x, axis: (x - x.mean(axis, keepdim=True)) / (x.std(axis, keepdim=True) + 1e-5),
    "all sums": lambda f, x, axis: x.sum(),
    "sum of the others": lambda f, x, axis: x.sum(tuple(i for i in range(x.ndim) if i != axis)),
    "softmax": lambda f, x, axis: x.softmax(axis),
    "log softmax": lambda f, x, axis: x.log_softmax(axis),
    "argmax": lambda f, x, axis: x.argmax(axis),
    "cumsum": lambda f, x, axis: x.cumsum(axis),
    "cumprod": lambda f, x, axis: x.cumprod(axis),
    "logsumexp": lambda f, x, axis: x.logsumexp(axis),
    "norm": lambda f, x, axis: x.norm(2, axis),
    "any": lambda f, x, axis: (x > 3).any(axis),
    "flip and add": lambda f, x, axis: x + x.flip(axis),
    "sort": lambda f, x, axis: x.sort(axis)[0],
    "argsort": lambda f, x, axis: x.take_along_dim(x.argsort(axis), axis),
    "topk 3": lambda f, x, axis: x.topk(min(3, x.shape[axis]), axis)[0],
}


def _rows(rng: random.Random) -> Case:
    name, shape = rng.choice(list(_ROW_PROGRAMS)), _shape(rng, [2, 2, 3, 4])
    axis, run = rng.randrange(len(shape)), _ROW_PROGRAMS[name]
    return Case(f"{name} of {_x(shape)} over axis {axis}", [shape], lambda f, x: run(f, x, axis))


_MOVES: dict[str, Callable[..., Any]] = {
    "tanh": lambda f, x, y, axis: x.tanh(),
    "gelu": lambda f, x, y, axis: f.gelu(x),
    "transpose": lambda f, x, y, axis: x.transpose(axis, -1).contiguous(),
    "reversed axes and 1": lambda f, x, y, axis: x.permute(*reversed(range(x.ndim))).contiguous() + 1,
    "first axis last": lambda f, x, y, axis: x.movedim(0, -1).contiguous(),
    "last axis first": lambda f, x, y, axis: x.movedim(-1, 0).contiguous(),
    "add along": lambda f, x, y, axis: x + y.mean(axis, keepdim=True),
    "cat": lambda f, x, y, axis: f.cat([x, y], axis),
    "cat of 3": lambda f, x, y, axis: f.cat([x, y, x], axis),
    "stack": lambda f, x, y, axis: f.stack([x, y], axis),
    "roll": lambda f, x, y, axis: f.roll(x, 1, axis),
    "pad last": lambda f, x, y, axis: f.pad(x, (1, 2)),
    "pad two": lambda f, x, y, axis: f.pad(x, (1, 1, 2, 2)),
    "every second": lambda f, x, y, axis: x[..., ::2] * 2,
    "without ends": lambda f, x, y, axis: x[1:-1, 1:-1] * 2,
    "differences": lambda f, x, y, axis: x[..., 1:] - x[..., :-1],
    "where": lambda f, x, y, axis: f.where(x > 0, x, y * 0.5),
    "where chain": lambda f, x, y, axis: f.where(x > 1, x, f.where(x > 0, y, f.where(y > 0, x * y, x + y))),
    "masked fill": lambda f, x, y, axis: x.masked_fill(y > 0, -1.0),
    "triangle": lambda f, x, y, axis: x.tril(),
    "repeat": lambda f, x, y, axis: f.stack([x, x], axis).flatten(),
    "clamped": lambda f, x, y, axis: (x * 2 + y).clamp(-1, 1),
    "halves": lambda f, x, y, axis: x.chunk(2, axis)[0] * x.chunk(2, axis)[0].sigmoid(),
}  # fmt: skip


def _moves(rng: random.Random) -> Case:
    name, shape = rng.choice(list(_MOVES)), _shape(rng, [2, 3, 3, 4])
    axis, run = rng.randrange(len(shape)), _MOVES[name]
    return Case(f"{name} of {_x(shape)} along axis {axis}", [shape, shape], lambda f, x, y: run(f, x, y, axis))


def _images(rng: random.Random) -> Case:
    kind = rng.choice(["conv2d", "conv2d", "conv1d", "max_pool2d", "avg_pool2d", "batch norm"])
    n, c, size = rng.choice([1, 4, 8]), rng.choice([1, 3, 8, 12, 32, 64]), rng.choice([7, 14, 20, 28, 33, 56])
    image = (n, c, size * 16) if kind == "conv1d" else (n, c, size, size)
    if kind == "batch norm":
        return Case(f"{kind} of {_x(image)}", [image, (c,), (c,), (c,)], lambda f, x, m, w, b: (
            (x - m[None, :, None, None]) * w[None, :, None, None] + b[None, :, None, None]).relu())  # fmt: skip
    k = rng.choice([2, 3, 3, 5])
    if "pool" in kind:
        return Case(f"{kind} {k} of {_x(image)}", [image], lambda f, x: getattr(f, kind)(x, k))
    weight = (rng.choice([1, 6, 16, 32, 64]), c, *[rng.choice([1, k])] * (len(image) - 2))
    stride, padding = rng.choice([1, 1, 2]), rng.choice([0, weight[-1] // 2])
    return Case(
        f"{kind} of {_x(image)} by {_x(weight)}, stride {stride}, padding {padding}",
        [image, weight],
        lambda f, x, w: getattr(f, kind)(x, w, stride=stride, padding=padding),
    )


def _layer_norm(f: Any, x: Any, weight: Any, bias: Any) -> Any:
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt() * weight + bias


def _layers(rng: random.Random) -> Case:
    kind = rng.choice(["mlp", "embedding", "attention", "cross attention", "layer norm", "one hot", "looked up"])
    n, d, h = rng.choice([1, 4, 33, 100, 256]), rng.choice([16, 48, 64, 100, 256]), rng.choice([10, 64, 100, 512])
    if kind == "mlp":
        return Case(f"mlp {n} x {d} x {h} x 10", [(n, d), (h, d), (h,), (10, h), (10,)],
                    lambda f, x, v, b, w, c: f.linear(f.linear(x, v, b).relu(), w, c))  # fmt: skip
    rows = rng.choice([50, 1000, 30000])
    if kind == "looked up":
        return Case(f"{n} of {rows} x {d}", [(rows, d), (n,)], lambda f, t, i: t[i], (0, rows))
    if kind == "embedding":
        shapes = [(rows, d), (h, d), (n,)]
        return Case(f"{n} of {rows} x {d} by {h}", shapes, lambda f, t, w, i: f.linear(t[i], w), (0, 0, rows))
    if kind == "one hot":
        return Case(f"one hot of {n} x {h} of {d}", [(n, h)], lambda f, i: f.one_hot(i, d), (d,))
    if kind == "layer norm":
        return Case(f"layer norm of {n} x {h} x {d}", [(n, h, d), (d,), (d,)], _layer_norm)
    heads, width, causal = rng.choice([1, 4, 12]), rng.choice([16, 32, 64, 80]), rng.choice([False, True])
    keys = rng.choice([7, 64, 300, 1000]) if kind == "cross attention" else n
    q, k = (1, heads, n, width), (1, heads, keys, width)
    causal = causal and n == keys
    return Case(f"{'causal ' if causal else ''}attention of {_x(q)} by {_x(k)}", [q, k, k],
                lambda f, q, k, v: f.scaled_dot_product_attention(q, k, v, is_causal=causal))  # fmt: skip


_TRAINED: dict[str, tuple[Sequence[str], Callable[..., Any]]] = {  # names of sizes for each tensor, what is trained
    "linear": (("nd", "hd", "h"), lambda f, x, w, b: f.linear(x, w, b).relu()),
    "product": (("nd", "dh"), lambda f, x, w: x @ w),
    "batched product": (("bnd", "bdh"), lambda f, x, w: x @ w),
    "softmax": (("bnd",), lambda f, x: x.softmax(-1)),
    "log softmax": (("nd",), lambda f, x: x.log_softmax(1)),
    "layer norm": (("bnd", "d", "d"), lambda f, x, w, b: _layer_norm(f, x, w, b)),
    "bias": (("bnd", "d"), lambda f, x, b: f.gelu(x + b)),
    "scaled rows": (("nd", "n1"), lambda f, x, w: (x * w).tanh()),
    "batch norm": (("bhxx", "h", "h"), lambda f, x, w, b: (
        (x - x.mean((0, 2, 3), keepdim=True)) / (x.var((0, 2, 3), keepdim=True) + 1e-5).sqrt()
        * w[None, :, None, None] + b[None, :, None, None])),
    "conv2d": (("bcxx", "hc33"), lambda f, x, w: f.conv2d(x, w, padding=1).relu()),
    "1 x 1 conv2d": (("bcxx", "hc11"), lambda f, x, w: f.conv2d(x, w)),
    "conv1d": (("bcn", "hc3"), lambda f, x, w: f.conv1d(x, w)),
    "max_pool2d": (("bcxx",), lambda f, x: f.max_pool2d(x, 2)),
    "attention": (("bqd", "bkd", "bkd"), lambda f, q, k, v: f.scaled_dot_product_attention(q, k, v)),
    "add along": (("bnd",), lambda f, x: x / (x.std(1, keepdim=True) + 1)),
}  # fmt: skip


def _gradients(rng: random.Random) -> Case:
    name = rng.choice(list(_TRAINED))
    sizes = {"b": [1, 4, 8, 12], "n": [1, 7, 32, 64, 100, 256], "d": [16, 33, 64, 100, 256], "x": [7, 14, 20, 28],
             "h": [10, 32, 64, 100], "c": [1, 3, 8, 32], "q": [7, 64, 100], "k": [64, 100, 300]}  # fmt: skip
    chosen = {letter: rng.choice(found) for letter, found in sizes.items()} | {"1": 1, "3": 3}
    shapes = [tuple(chosen[letter] for letter in term) for term in _TRAINED[name][0]]
    work = 3.0 * math.prod(chosen[letter] for letter in set("".join(_TRAINED[name][0])))
    what = f"gradients of {name} of {', '.join(map(_x, shapes))}"
    return Case(what, shapes, _TRAINED[name][1], work=work, is_training=True)


_BATCHED = ("bij,bjk->bik", "bij,bkj->bik", "bji,bjk->bik", "bij,bj->bi", "bij,jk->bik", "ij,kj->ik", "ij,jk->ik")


def _batches(rng: random.Random) -> Case:
    """Many small products, and tall and wide ones."""
    formula = rng.choice(_BATCHED)
    small, large = [2, 3, 4, 8, 10, 16, 20, 32], [1000, 2048, 5000, 20000]
    size = {name: rng.choice(small) for name in "ijk"} | {"b": rng.choice([32, 100, 512, 1000])}
    size |= {} if "b" in formula else {name: rng.choice(large) for name in rng.sample("ijk", 1)}
    shapes = [tuple(size[name] for name in term) for term in formula.split("->")[0].split(",")]
    what = f"einsum {formula} {', '.join(map(_x, shapes))}"
    return Case(what, shapes, lambda f, *x: f.einsum(formula, *x), work=math.prod(size.values()))


_TYPED: dict[str, tuple[str, Callable[..., Any]]] = {  # the kinds of dtypes that take it: float, int, bool
    "sum": ("fib", lambda f, x, y, axis: x.sum(axis)),
    "sum of all": ("fib", lambda f, x, y, axis: x.sum()),
    "mean": ("f", lambda f, x, y, axis: x.mean(axis)),
    "max": ("fi", lambda f, x, y, axis: x.amax(axis)),
    "argmax": ("fi", lambda f, x, y, axis: x.argmax(axis)),
    "any": ("fib", lambda f, x, y, axis: x.any(axis)),
    "cumsum": ("fi", lambda f, x, y, axis: x.cumsum(axis)),
    "add": ("fi", lambda f, x, y, axis: x + y * 2),
    "quotient": ("fi", lambda f, x, y, axis: x / (y * y + 1)),
    "compare": ("fib", lambda f, x, y, axis: x == y),
    "where": ("fib", lambda f, x, y, axis: f.where(x == y, x, y)),
    "to float": ("ib", lambda f, x, y, axis: x.float() * 0.5),
    "softmax": ("f", lambda f, x, y, axis: x.softmax(axis)),
    "gelu": ("f", lambda f, x, y, axis: f.gelu(x)),
    "transpose": ("fib", lambda f, x, y, axis: x.transpose(axis, -1).contiguous()),
    "cat": ("fib", lambda f, x, y, axis: f.cat([x, y], axis)),
    "flip": ("fib", lambda f, x, y, axis: x.flip(axis)),
    "sort": ("fi", lambda f, x, y, axis: x.sort(axis)[0]),
    "bits": ("i", lambda f, x, y, axis: (x & y) | (x ^ 3)),
    "product": ("f", lambda f, x, y, axis: x.reshape(-1, x.shape[-1])[:64] @ y.reshape(-1, y.shape[-1])[:100].T),
}
_DTYPES = {"float16": "f", "bfloat16": "f", "float64": "f", "int32": "i", "int64": "i", "uint8": "i", "bool": "b"}


def _dtypes(rng: random.Random) -> Case:
    dtype = rng.choice(list(_DTYPES))
    name = rng.choice([one for one, (kinds, _) in _TYPED.items() if _DTYPES[dtype] in kinds])
    shape, run = _shape(rng, [2, 2, 3]), _TYPED[name][1]
    axis = rng.randrange(len(shape))
    what = f"{name} of {dtype} {_x(shape)} axis {axis}"
    return Case(what, [shape, shape], lambda f, x, y: run(f, x, y, axis), dtype=dtype)


def _volumes(rng: random.Random) -> Case:
    """Convolutions of other kinds, and what changes the size of images."""
    kind = rng.choice(["conv3d", "groups", "dilation", "depthwise", "conv_transpose2d", "interpolate", "wide pool",
                       "global pool"])  # fmt: skip
    n, c, size = rng.choice([1, 4]), rng.choice([4, 16, 32]), rng.choice([7, 14, 20, 28, 33])
    k, o, image = rng.choice([2, 3]), rng.choice([8, 16, 48]), (n, c, size, size)
    if kind == "conv3d":
        size = min(size, 14)
        shapes = [(n, c, size, size, size), (o, c, k, k, k)]
        return Case(f"conv3d of {_x(shapes[0])} by {_x(shapes[1])}", shapes, lambda f, x, w: f.conv3d(x, w),
                    work=math.prod(shapes[1]) * n * size**3)  # fmt: skip
    if kind in ("groups", "depthwise"):
        groups = c if kind == "depthwise" else rng.choice([2, 4])
        weight = (c if kind == "depthwise" else o, c // groups, k, k)
        return Case(f"conv2d of {_x(image)} by {_x(weight)}, {groups} groups", [image, weight],
                    lambda f, x, w: f.conv2d(x, w, padding=1, groups=groups))  # fmt: skip
    if kind == "dilation":
        return Case(f"conv2d of {_x(image)} by {_x((o, c, k, k))}, dilation 2", [image, (o, c, k, k)],
                    lambda f, x, w: f.conv2d(x, w, padding=2, dilation=2))  # fmt: skip
    if kind == "conv_transpose2d":
        stride = rng.choice([1, 2])
        return Case(f"{kind} of {_x(image)} by {_x((c, o, k, k))}, stride {stride}", [image, (c, o, k, k)],
                    lambda f, x, w: f.conv_transpose2d(x, w, stride=stride))  # fmt: skip
    if kind == "interpolate":
        mode = rng.choice(["nearest", "bilinear"])
        return Case(f"{mode} twice as large as {_x(image)}", [image],
                    lambda f, x: f.interpolate(x, scale_factor=2, mode=mode))  # fmt: skip
    if kind == "wide pool":
        pool = rng.choice(["max_pool2d", "avg_pool2d"])
        return Case(f"{pool} 3, stride 1 of {_x(image)}", [image], lambda f, x: getattr(f, pool)(x, 3, 1, 1))
    return Case(f"mean of images of {_x(image)}", [image], lambda f, x: x.mean((2, 3)))


_PLACED: dict[str, Callable[..., Any]] = {
    "scatter_add": lambda f, x, i, axis: (x * 0).scatter_add(axis, i, x),
    "gather": lambda f, x, i, axis: x.gather(axis, i),
    "rows": lambda f, x, i, axis: x[i[:, 0]],
    "columns": lambda f, x, i, axis: x.index_select(1, i[:, 0]),
    "one hot": lambda f, x, i, axis: f.one_hot(i, 16).sum(0),
    "equal": lambda f, x, i, axis: (i == i[:, :1]).sum(1),
    "mask": lambda f, x, i, axis: x.masked_fill(i > 1, 0.0).sum(axis),
    "outer": lambda f, x, i, axis: x[:, 0].unsqueeze(1) * x[:, 1].unsqueeze(0),
    "distances": lambda f, x, i, axis: (x[:64, None, :] - x[None, :64, :]).pow(2).sum(-1),
    "triangle sum": lambda f, x, i, axis: x.tril().sum(axis),
    "cross entropy": lambda f, x, i, axis: -x.log_softmax(1).gather(1, i[:, :1]).mean(),
    "row and column": lambda f, x, i, axis: x - x.mean(0, keepdim=True) - x.mean(1, keepdim=True),
    "broadcast where": lambda f, x, i, axis: f.where(i[:, :1] > 1, x, x[:1]),
    "middle row": lambda f, x, i, axis: x.sort(0)[0][x.shape[0] // 2],
}


def _places(rng: random.Random) -> Case:
    name = rng.choice(list(_PLACED))
    shape, run = (rng.choice([64, 100, 256, 1000, 3000]), rng.choice([16, 33, 100, 256])), _PLACED[name]
    axis = rng.randrange(2)
    what = f"{name} of {_x(shape)} axis {axis}"
    return Case(what, [shape, shape], lambda f, x, i: run(f, x, i, axis), (0, 16))


FAMILIES = {
    "products": _products,
    "einsums": _einsums,
    "rows": _rows,
    "moves": _moves,
    "images": _images,
    "layers": _layers,
    "gradients": _gradients,
    "batches": _batches,
    "dtypes": _dtypes,
    "volumes": _volumes,
    "places": _places,
}


def _functions() -> tuple[Any, Any]:
    """What programs call that is no method, under the same names: kernmill's and torch's."""
    import torch
    from torch.nn import functional

    import kernmill

    joining = ("cat", "stack", "where", "einsum")
    named = ("conv1d", "conv2d", "conv3d", "conv_transpose2d", "gelu", "interpolate", "linear", "avg_pool2d",
             "max_pool2d", "one_hot", "pad", "roll", "scaled_dot_product_attention")  # fmt: skip
    theirs = {name: getattr(functional, name, None) or getattr(torch, name) for name in (*named, *joining)}
    ours = {name: getattr(kernmill.Tensor, name) for name in named}
    ours |= {name: getattr(kernmill, name) for name in joining}
    return SimpleNamespace(**ours), SimpleNamespace(**theirs)


def _arrays(case: Case, values: Any) -> list[Any]:
    """Random operands in NumPy's arrays, bfloat16 as float32."""
    import numpy as np

    found = []
    for shape, below in zip_longest(case.shapes, case.below, fillvalue=0):
        if below or _DTYPES.get(case.dtype) == "i":
            found.append(values.integers(below or 100, size=shape).astype(np.int64 if below else case.dtype))
        elif case.dtype == "bool":
            found.append(values.random(shape) < 0.1)
        else:
            found.append(values.standard_normal(shape).astype("float32" if case.dtype == "bfloat16" else case.dtype))
    return found


def _calls(case: Case, arrays: list[Any]) -> dict[str, Callable[[], Any]]:
    """The program on both sides: each gives its result, or all gradients."""
    import torch

    import kernmill

    ours, theirs = _functions()
    given, narrow = (
        [kernmill.Tensor(array, requires_grad=case.is_training) for array in arrays],
        case.dtype == "bfloat16",
    )
    x = [t.cast("bfloat16").realize() if narrow and t.dtype.is_float else t for t in given]
    y = [t.bfloat16() if narrow and t.is_floating_point() else t for t in map(torch.from_numpy, arrays)]

    def slopes(*x: Any) -> Any:
        result = case.run(ours, *x)
        return (result * result).mean().gradient(*x)

    def their_slopes(*y: Any) -> Any:
        result = case.run(theirs, *y)
        return torch.autograd.grad((result * result).mean(), y)

    if case.is_training:
        for leaf in y:
            leaf.requires_grad_()
        return {"kernmill": partial(kernmill.jit(slopes), *x), "torch": partial(their_slopes, *y)}
    return {"kernmill": partial(kernmill.jit(partial(case.run, ours)), *x), "torch": partial(case.run, theirs, *y)}


def _is_right(case: Case, found: Any, wanted: Any) -> bool:
    import numpy as np

    if not case.is_training:
        found, wanted = [found], [wanted]

    near = {"float16": 2e-2, "bfloat16": 5e-2}.get(case.dtype, 1e-3)
    pairs = [(a.cast("float64").numpy(), b.detach().double().numpy()) for a, b in zip(found, wanted, strict=True)]
    return all(np.allclose(a, b, rtol=near, atol=near * max(1.0, abs(b).max(initial=0.0))) for a, b in pairs)


def lines_of(family: str, seed: int, seconds: float) -> Iterator[Line]:
    """Random programs of a family, one after the other, until the time is over; at least one."""
    import numpy as np

    rng, values, end, line = random.Random(seed), np.random.default_rng(seed), time.monotonic() + seconds, None
    while time.monotonic() < end or line is None:
        case = FAMILIES[family](rng)
        if case.work > _MOST_WORK or max(map(math.prod, case.shapes)) > _MOST_ELEMENTS:
            continue
        calls = _calls(case, _arrays(case, values))
        for _ in range(3):
            result = calls["kernmill"]()
        is_right = _is_right(case, result, calls["torch"]())
        samplers = {name: call_sampler(call, _SAMPLE_S, 1) for name, call in calls.items()}
        times = interleave(samplers, _ROUNDS)
        line = Line(case.what, min(times["kernmill"]), min(times["torch"]), is_right)
        yield line


def markdown(facts: dict[str, Any], lines: Sequence[Line], most: int) -> str:
    """The machine, the mean, and the lines where kernmill is slowest."""
    text = [f"{machine_line(facts)}, one thread.", "",
            f"{len(lines)} programs; x: torch's time by kernmill's, the least of {_ROUNDS} rounds each. "
            f"Geometric mean: {digits(geometric_mean([line.ratio for line in lines]))}.", "",
            as_row(["program", "kernmill", "torch", "x"]), as_row(["---", "--:", "--:", "--:"])]  # fmt: skip
    lines = [line for line in lines if line.kernmill_s > _LEAST_S or not line.is_right]
    for line in sorted(lines, key=lambda one: (one.is_right, one.ratio))[:most]:
        shown = digits(line.ratio) if line.is_right else "WRONG"
        text.append(as_row([line.what, show_seconds(line.kernmill_s), show_seconds(line.torch_s), shown]))
    return "\n".join(text) + "\n"


def main(given: Sequence[str] | None = None) -> int:
    """1 when a result was wrong, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.sizes", description=__doc__)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"of {', '.join(FAMILIES)}; default: all")
    parser.add_argument("--seconds", type=float, default=60, help="for each family (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the same programs again (default %(default)s)")
    parser.add_argument("--most", type=int, default=20, help="lines that are shown (default %(default)s)")
    arguments = parser.parse_args(given)
    unknown = [name for name in arguments.families if name not in FAMILIES]
    if unknown:
        parser.error(f"no family {unknown[0]}; there are: {', '.join(FAMILIES)}")
    os.environ |= {"THREADS": "1", "OMP_NUM_THREADS": "1"}
    lines = [
        line for name in arguments.families or FAMILIES for line in lines_of(name, arguments.seed, arguments.seconds)
    ]
    print(markdown(machine(), lines, arguments.most))
    return 1 if any(not line.is_right for line in lines) else 0


if __name__ == "__main__":
    sys.exit(unless_cut_off(main))
