"""Small programs as a new user writes them, each once with tensors and once with NumPy's arrays.

Loops read values, views are written to, and captured functions are called with other numbers. What a program means
must not depend on what is lazy, shared, or captured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernmill import KernmillError, Tensor, cat, jit, no_grad, stack, where

Array = np.ndarray[Any, np.dtype[Any]]
Pairs = list[tuple[Any, Any]]
RNG = np.random.default_rng(3)


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def check(pairs: Pairs) -> None:
    for got, want in pairs:
        values = got.numpy() if isinstance(got, Tensor) else np.asarray(got)
        np.testing.assert_allclose(values, want, rtol=2e-3, atol=2e-4)


# --- eager loops
def k_means() -> Pairs:
    x = normal(50, 3)
    points, centers, own = Tensor(x), Tensor(x[:4].copy()), x[:4].copy()
    for _ in range(8):
        named = ((points.unsqueeze(1) - centers.unsqueeze(0)) ** 2).sum(-1).argmin(1)
        hot = named.one_hot(4).float()
        centers = (hot.T @ points) / hot.sum(0).unsqueeze(1).clamp(min=1)
        rows = np.eye(4, dtype=np.float32)[((x[:, None] - own[None]) ** 2).sum(-1).argmin(1)]
        own = (rows.T @ x) / np.maximum(rows.sum(0)[:, None], 1)
    return [(centers, own)]


def growing_context() -> Pairs:
    weight = normal(6, 6) * 0.5
    first = normal(1, 6)
    context, own, pairs = Tensor(first), first, Pairs()
    for i in range(12):
        made = ((context @ Tensor(weight)) @ context.T).softmax(-1) @ context
        context = cat([context, made[-1:].tanh() * (1 + 0.01 * i)], 0)
        scores = (own @ weight) @ own.T
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        next_row = np.tanh((scores / scores.sum(-1, keepdims=True) @ own)[-1:]) * np.float32(1 + 0.01 * i)
        own = np.concatenate([own, next_row], 0)
        pairs.append((context.sum().item(), own.sum()))
    return [*pairs, (context, own)]


def steps_of_an_ode() -> Pairs:
    def slope(y: Any) -> Any:
        return stack([y[1], -y[0]]) if isinstance(y, Tensor) else np.array([y[1], -y[0]])

    def step(y: Any, h: float) -> Any:
        a = slope(y)
        b = slope(y + h / 2 * a)
        return y + h * slope(y + h / 2 * b)

    y, own, h = Tensor([1.0, 0.0]), np.array([1.0, 0.0]), 0.1
    for _ in range(15):
        y, own, h = step(y, h), step(own, h), min(0.3, h * 1.1)
    return [(y, own)]


def life() -> Pairs:
    start = (RNG.random((12, 15)) < 0.4).astype(np.int32)
    cells, own = Tensor(start), start
    places = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if (a, b) != (0, 0)]
    for _ in range(10):
        count: Any = sum(cells.roll(place, (0, 1)) for place in places)
        cells = ((count == 3) | ((cells == 1) & (count == 2))).int()
        near: Any = sum(np.roll(own, place, (0, 1)) for place in places)
        own = ((near == 3) | ((own == 1) & (near == 2))).astype(np.int32)
    return [(cells, own)]


def bisection() -> Pairs:
    low, high, target = Tensor.zeros(8), Tensor.full((8,), 4.0), np.linspace(1, 9, 8).astype(np.float32)
    for _ in range(30):
        middle = (low + high) / 2
        is_below = middle * middle < Tensor(target)
        low, high = where(is_below, middle, low), where(is_below, high, middle)
    return [(low, np.sqrt(target)), (high, np.sqrt(target))]


def batches_of_other_sizes() -> Pairs:
    mean, own, pairs = Tensor.zeros(3), np.zeros(3, np.float32), Pairs()
    for i in range(1, 20):
        x, share = normal(int(RNG.integers(2, 9)), 3), 1 / i
        mean = mean * (1 - share) + Tensor(x).mean(0) * share
        own = own * np.float32(1 - share) + x.mean(0) * np.float32(share)
        pairs += [(mean.sum().item(), own.sum()), (Tensor(x)[Tensor(np.arange(len(x))[::-1].copy())], x[::-1])]
    return [*pairs, (mean, own)]


# --- views and writes
def sieve() -> Pairs:
    is_prime, own = Tensor.ones(200, dtype="bool"), np.ones(200, bool)
    for one in (is_prime, own):
        one[:2] = False
        for i in range(2, 15):
            if bool(one[i]):
                one[i * i :: i] = False
    return [(is_prime, own)]


def parts_of_a_matrix() -> Pairs:
    t, own = Tensor.zeros(6, 6), np.zeros((6, 6), np.float32)
    row = np.arange(1, 7, dtype=np.float32)
    for one, given in ((t, Tensor(row)), (own, row)):
        one[::2, 1::2] = 3
        one[1] = given
        one[:, 0] += 5
        one[2:4, 2:4] *= 2
        one[-1, ::-1][0] = 7
        one[0][1] = 9
        one.T[3:5, ::2] -= 1
    return [(t, own)]


def elimination() -> Pairs:
    a = normal(5, 5) + 5 * np.eye(5, dtype=np.float32)
    t, own = Tensor(a), a.copy()
    for one in (t, own):
        for k in range(4):
            one[k + 1 :, k] /= one[k, k]
            one[k + 1 :, k + 1 :] -= one[k + 1 :, k : k + 1] * one[k : k + 1, k + 1 :]
    return [(t, own)]


def rows_that_are_kept() -> Pairs:
    t, own = Tensor(np.zeros((4, 4), np.float32)), np.zeros((4, 4), np.float32)
    rows, theirs = [t[i] for i in range(4)], [own[i] for i in range(4)]
    for i in range(4):
        rows[i] += i
        theirs[i] += i
        rows[i][0] *= 3
        theirs[i][0] *= 3
    return [(t, own), (rows[2], theirs[2])]


def reads_between_writes() -> Pairs:
    t, own, pairs = Tensor.zeros(5), np.zeros(5, np.float32), Pairs()
    for i in range(5):
        part, theirs = t[1:4], own[1:4]
        t[i], own[i] = i + 1, i + 1
        pairs.append((part.sum().item(), theirs.sum()))
        part += 1
        theirs += 1
    return [*pairs, (t, own)]


def overlapping_writes() -> Pairs:
    t, own = Tensor(np.arange(8, dtype=np.float32)), np.arange(8, dtype=np.float32)
    t[1:] = t[:-1]
    own[1:] = own[:-1].copy()
    t[:] = t.flip(0)
    own[:] = own[::-1].copy()
    t += t[0]
    own += own[0].copy()
    t[[1, 3]] = t[[3, 1]]
    own[[1, 3]] = own[[3, 1]]
    return [(t, own)]


def ring_buffer() -> Pairs:
    ring, own, pairs = Tensor.zeros(4, 2), np.zeros((4, 2), np.float32), Pairs()
    for i in range(11):
        ring[i % 4] = Tensor([float(i), i * 2.0])
        own[i % 4] = [i, i * 2]
        if i % 3 == 0:
            pairs.append((ring.mean(0).numpy(), own.mean(0)))
    return [*pairs, (ring, own)]


# --- captured functions
def numbers_in_two_roles() -> Pairs:
    work = jit(lambda x, a, b: x * a + b)
    pairs = Pairs()
    for a, b in [(2.5, 2.5), (2.5, 3.5), (3.5, 3.5), (4.5, 4.5), (0.5, 0.25), (7.1, 7.1), (1.0, 2.2), (0.0, 2.2)]:
        x = normal(4)
        pairs += [(work(Tensor(x), a, b), x * np.float32(a) + np.float32(b)) for _ in range(2)]
    return pairs


def thresholds() -> Pairs:
    work = jit(lambda x, at: where(x > at, x, at * 2))
    pairs = Pairs()
    for at in (0.1, 0.2, 0.3, -0.4, 1e30, 1e-30, math.inf, 0.7):
        x = normal(6)
        pairs.append((work(Tensor(x), at), np.where(x > np.float32(at), x, np.float32(at) * 2)))
    return pairs


def results_that_are_kept() -> Pairs:
    work, kept = jit(lambda x, a: (x * a, x + a)), []
    for i in range(8):
        x = normal(4)
        kept.append((work(Tensor(x), i + 0.5), x, np.float32(i + 0.5)))
    return [pair for (p, q), x, a in kept for pair in ((p, x * a), (q, x + a))]


def a_rate_of_an_object() -> Pairs:
    class Model:
        def __init__(self) -> None:
            self.weight, self.rate = Tensor.ones(3), 0.5

        @jit
        def step(self, x: Tensor) -> Tensor:
            self.weight += x * self.rate
            return self.weight.sum()

    model, pairs = Model(), Pairs()
    own: Array = np.ones(3, np.float32)
    for i in range(8):
        model.rate, x = 0.5 / (i + 1), normal(3)
        own = own + x * np.float32(model.rate)
        pairs.append((model.step(Tensor(x)).item(), own.sum()))
    return [*pairs, (model.weight, own)]


def a_step_with_its_own_rates() -> Pairs:
    x, start = normal(9, 5), normal(5)
    weight, own, pairs = Tensor(start, requires_grad=True), start.astype(np.float64), Pairs()

    @jit
    def step(rate: float, decay: float) -> Tensor:
        loss = ((Tensor(x) @ weight) ** 2).mean()
        (slope,) = loss.gradient(weight)
        with no_grad():
            weight.assign(weight * (1 - decay) - rate * slope)
        return loss

    for i in range(10):
        rate, decay = 0.05 * (1 + math.cos(i / 10 * math.pi)), 0.01 * i
        pairs.append((step(rate, decay).item(), ((x @ own) ** 2).mean()))
        own = own * (1 - decay) - rate * 2 * x.T @ (x @ own) / len(x)
    return [*pairs, (weight.detach(), own)]


PROGRAMS: list[Callable[[], Pairs]] = [
    k_means, growing_context, steps_of_an_ode, life, bisection, batches_of_other_sizes, sieve, parts_of_a_matrix,
    elimination, rows_that_are_kept, reads_between_writes, overlapping_writes, ring_buffer, numbers_in_two_roles,
    thresholds, results_that_are_kept, a_rate_of_an_object, a_step_with_its_own_rates,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_means_what_it_means_with_arrays(program: Callable[[], Pairs]) -> None:
    check(program())


def test_a_write_to_repeated_elements_is_right_or_refused() -> None:
    repeated = Tensor.zeros(1, 3).expand(4, 3)
    try:
        repeated[0] = 1
    except KernmillError:
        return
    assert repeated.numpy()[0].tolist() == [1, 1, 1]
