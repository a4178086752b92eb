"""Random eager programs whose sizes and numbers change from call to call: every call agrees with NumPy.

After the second call one plan serves the others (runtime/plans/families.py), so a wrong expression of a size, a vector
that reads behind the end of its memory, or a number that stayed in a kernel would show here.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernmill import Context, Tensor, cat
from kernmill.runtime import families

SEEDS = int(os.environ.get("FUZZ_SEEDS", "24"))
Step = tuple[Callable[[Tensor, float], Tensor], Callable[[Any, float], Any]]


def softmax(x: Any, axis: int) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def causal(x: Any) -> Any:
    return np.where(np.tril(np.ones((x.shape[0], x.shape[0]))) > 0, x @ x.T, -1.0)


def windows(x: Any) -> Any:
    wide = np.pad(x, ((1, 1), (0, 0)))
    return wide[:-2] + wide[1:-1] + wide[2:]


STEPS: dict[str, Step] = {
    "scale": (lambda x, v: x * v, lambda x, v: x * v),
    "shift": (lambda x, v: (x + v).relu(), lambda x, v: np.maximum(x + v, 0)),
    "softmax": (lambda x, v: x.softmax(1), lambda x, v: softmax(x, 1)),
    "columns": (lambda x, v: x.softmax(0), lambda x, v: softmax(x, 0)),
    "centre": (lambda x, v: x - x.mean(0, keepdim=True), lambda x, v: x - x.mean(0, keepdims=True)),
    "norm": (lambda x, v: x / (x.square().mean(1, keepdim=True) + v).sqrt(),
             lambda x, v: x / np.sqrt((x * x).mean(1, keepdims=True) + v)),
    "turn": (lambda x, v: x.T, lambda x, v: x.T),
    "gram": (lambda x, v: (x @ x.T) * 0.1, lambda x, v: (x @ x.T) * 0.1),
    "causal": (lambda x, v: (x @ x.T).masked_fill(Tensor.ones(x.shape[0], x.shape[0]).tril() == 0, -1.0),
               lambda x, v: causal(x)),
    "sums": (lambda x, v: x.cumsum(0), lambda x, v: x.cumsum(0)),
    "tail": (lambda x, v: x[x.shape[0] // 2 :], lambda x, v: x[x.shape[0] // 2 :]),
    "last": (lambda x, v: x[-1:] + x, lambda x, v: x[-1:] + x),
    "halves": (lambda x, v: x[::2], lambda x, v: x[::2]),
    "back": (lambda x, v: x.flip(0) + x, lambda x, v: x[::-1] + x),
    "join": (lambda x, v: cat([x, x * v], 0), lambda x, v: np.concatenate([x, x * v])),
    "flat": (lambda x, v: x.reshape(1, -1), lambda x, v: x.reshape(1, -1)),
    "row": (lambda x, v: x.reshape(-1, 1) * v, lambda x, v: x.reshape(-1, 1) * v),
    "edge": (lambda x, v: x.pad(((1, 2), (0, 0))), lambda x, v: np.pad(x, ((1, 2), (0, 0)))),
    "window": (lambda x, v: (lambda w: w[:-2] + w[1:-1] + w[2:])(x.pad(((1, 1), (0, 0)))), lambda x, v: windows(x)),
    "count": (lambda x, v: x + Tensor.arange(x.shape[0]).float().reshape(-1, 1) * 0.5,
              lambda x, v: x + np.arange(x.shape[0]).reshape(-1, 1) * 0.5),
    "rank": (lambda x, v: x.argmax(1, keepdim=True).float() + x, lambda x, v: x.argmax(1, keepdims=True) + x),
    "order": (lambda x, v: x.sort(0)[0], lambda x, v: np.sort(x, 0)),
    "total": (lambda x, v: x.sum().reshape(1, 1) * 0.01 + x, lambda x, v: x.sum().reshape(1, 1) * 0.01 + x),
}  # fmt: skip


def rows(rng: random.Random) -> list[tuple[int, int]]:
    """Shapes of the calls: rows, columns or both change, some come again."""
    start, other = rng.choice([2, 3, 4, 7, 16]), rng.choice([1, 2, 5, 8])
    kind = rng.randrange(4)
    grow = [start + step for step in (0, 1, 2, 3, 7, 13, 1, 30)]
    if kind == 0:
        return [(n, other) for n in grow]
    if kind == 1:
        return [(other, n) for n in grow]
    if kind == 2:
        return [(n, 2 * n + 1) for n in grow[:-1]]
    return [(n, rng.choice([2, 3, 5, 9, 17])) for n in grow]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_sizes_and_numbers_that_change(seed: int, device: str) -> None:
    rng, values = random.Random(seed), np.random.default_rng(seed)
    names = [rng.choice([*STEPS]) for _ in range(rng.randint(1, 4))]
    calls = rows(rng) if device != "PYTHON" else rows(rng)[:5]
    with Context(DEVICE=device):
        for count, columns in calls:
            array, number = values.uniform(-2, 2, (count, columns)).astype(np.float32), float(values.uniform(0.1, 2))
            got, want = Tensor(array), array.astype(np.float64)
            for name in names:
                got, want = STEPS[name][0](got, number), STEPS[name][1](want, number)
            np.testing.assert_allclose(got.numpy(), want, rtol=2e-4, atol=2e-4, err_msg=f"{names} {array.shape}")


def test_programs_of_changing_sizes_share_plans() -> None:
    """The random programs would prove nothing if each of their calls had exact kernels."""
    families.families.clear()
    for count in range(2, 12):
        (Tensor(np.ones((count, 3), np.float32)).softmax(1) * (0.3 + count)).numpy()
    (family,) = families.families.values()
    assert len(family.generals) == 1
    assert family.exact == 0
