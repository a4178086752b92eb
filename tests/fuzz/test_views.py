"""Random programs of views, writes and reads, each step compared with NumPy, whose views are the right answer.

A program may be refused where the tensor of two overlapping views is gone; how often is counted.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernmill import KernmillError, Tensor

PROGRAMS, STEPS = 60, 12


class Pair:
    """A tensor and the array that it must be equal to."""

    def __init__(self, ours: Any, theirs: Any) -> None:
        self.ours, self.theirs = ours, theirs

    def check(self) -> None:
        np.testing.assert_array_equal(self.ours.numpy(), self.theirs)


def index(rng: random.Random, shape: tuple[int, ...]) -> Any:
    """A basic index that leaves something."""
    items: list[Any] = []
    for size in shape[: rng.randint(0, len(shape))]:
        kind = rng.random()
        if kind < 0.35 or size < 2:
            items.append(rng.randint(-size, size - 1))
        else:
            start = rng.randint(0, size - 1)
            step = rng.choice([1, 1, 2, -1, -2])
            items.append(slice(start, rng.randint(start + 1, size), step) if step > 0 else slice(start, None, step))
    if rng.random() < 0.2:
        items.append(...)
    return tuple(items)


def view(rng: random.Random, pair: Pair) -> Pair:
    """One more tensor that shows elements of this one."""
    ours, theirs = pair.ours, pair.theirs
    axis = rng.randrange(theirs.ndim) if theirs.ndim else 0
    calls: list[Callable[[], tuple[Any, Any]]] = [lambda: (ours.detach(), theirs[...]), lambda: (ours.T, theirs.T)]
    if theirs.ndim:
        at, part = index(rng, theirs.shape), rng.randrange(theirs.shape[axis])
        calls += [lambda: (ours[at], theirs[at]) if isinstance(theirs[at], np.ndarray) else (ours[:], theirs[:])] * 3
        calls += [
            lambda: (ours.unbind(axis)[part], np.moveaxis(theirs, axis, 0)[part : part + 1][0, ...]),
            lambda: (ours.split(1, axis)[part], np.moveaxis(np.moveaxis(theirs, axis, 0)[part : part + 1], 0, axis)),
            lambda: (ours.transpose(axis, 0), theirs.swapaxes(axis, 0)),
            lambda: (ours.unsqueeze(axis), np.expand_dims(theirs, axis)),
            lambda: (ours.flatten(), theirs.reshape(-1)),  # a copy where both have to copy
            lambda: (ours.reshape((*theirs.shape[:-1], 1, theirs.shape[-1])), theirs[..., None, :]),
            lambda: (ours.squeeze(), theirs.squeeze()),
            lambda: (ours.flip(axis), np.flip(theirs, axis).copy()),
            lambda: (ours.clone(), theirs.copy()),
        ]
    if theirs.ndim > 1:
        last = theirs.shape[-2] * theirs.shape[-1]
        calls += [
            lambda: (ours.reshape((*theirs.shape[:-2], last)), theirs.reshape((*theirs.shape[:-2], last))),
            lambda: (ours.diagonal(), writable(theirs.diagonal())),
        ]
    return Pair(*rng.choice(calls)())


def writable(array: Any) -> Any:
    array.setflags(write=True)
    return array


def write(rng: random.Random, pair: Pair) -> None:
    """A write of one of the forms; refused ones change nothing on either side."""
    ours, theirs = pair.ours, pair.theirs
    number = float(rng.randint(-50, 50))
    at = index(rng, theirs.shape)
    values = np.random.default_rng(rng.randint(0, 10**6)).integers(-50, 50, theirs[at].shape).astype(np.float32)
    mask = np.random.default_rng(rng.randint(0, 10**6)).random(theirs.shape) < 0.5
    kind = rng.choice(["item", "item", "values", "add", "assign", "mask", "list"])
    if kind == "item":
        ours[at] = number
        theirs[at] = number
    elif kind == "values":
        ours[at] = Tensor(values)
        theirs[at] = values
    elif kind == "add":
        ours += number
        theirs += number
    elif kind == "assign":
        ours.assign(number)
        theirs[...] = number
    elif kind == "mask" and theirs.ndim:
        ours[Tensor(mask)] = number
        theirs[mask] = number
    elif kind == "list" and theirs.ndim:
        ours[[0, -1]] = number
        theirs[[0, -1]] = number


def is_refused(rng: random.Random, pair: Pair) -> bool:
    """True if a write is refused for the one reason that it may be."""
    try:
        write(rng, pair)
    except KernmillError as error:
        if "is gone" not in str(error):
            raise
        return True
    return False


def run(seed: int, reads: str) -> tuple[int, int]:
    """A program. How many writes it made, and how many were refused."""
    rng = random.Random(seed)
    shape = tuple(rng.randint(1, 4) for _ in range(rng.randint(1, 3)))
    start = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    pairs = [Pair(Tensor(start.copy()) + (1 if rng.random() < 0.5 else 0), start)]
    pairs[0].theirs = pairs[0].ours.numpy().copy()
    written = refused = 0
    for _ in range(STEPS):
        one = rng.choice(pairs)
        if rng.random() < 0.5:
            new = view(rng, one)
            if isinstance(new.theirs, np.ndarray):
                pairs.append(new)
        else:
            refused += is_refused(rng, one)
            written += 1
        if reads == "all":
            for pair in pairs:
                pair.check()
        elif reads == "some":
            rng.choice(pairs).check()
        elif reads == "realized":
            rng.choice(pairs).ours.realize()
        if reads != "all" and len(pairs) > 3 and rng.random() < 0.1:
            del pairs[rng.randrange(len(pairs))]
            del one
    for pair in pairs:
        pair.check()
    return written, refused


@pytest.mark.parametrize("reads", ["all", "some", "realized", "none"])
def test_views_are_numpys(reads: str) -> None:
    results = [run(seed, reads) for seed in range(PROGRAMS // 4)]
    written, refused = (sum(column) for column in zip(*results, strict=True))
    assert written > 3 * PROGRAMS // 4
    assert refused <= written // 20


def test_views_are_pytorchs() -> None:
    """The forms that people write, on a tensor of each library."""
    torch = pytest.importorskip("torch")

    def rows(t: Any) -> None:
        for row in t:
            row[0] = 1

    def later(t: Any) -> Any:
        v = t[1:]
        w = v.T[1]
        t[2, 1] = 50
        w[0] += 100
        return v

    def both(t: Any) -> Any:
        a, b = (t + 1).chunk(2, -1)
        a += 1
        b[0] = a[1]
        return a.flatten()

    forms: list[Callable[[Any], Any]] = [
        lambda t: t[1].__setitem__(2, 5), lambda t: t.T.__setitem__((0, 1), 5), lambda t: t.detach().__setitem__(1, 5),
        lambda t: t.reshape(4, 3)[1].__setitem__(slice(0, 2), 7), lambda t: t.view(2, 6).__setitem__(1, 7), rows, later,
        both, lambda t: t[0].__iadd__(1), lambda t: t.flatten().__setitem__(slice(2, 7, 2), 9),
        lambda t: t.T.reshape(-1).__setitem__(0, 9), lambda t: t.unbind(1)[2].__setitem__(1, 9),
        lambda t: t.diagonal(1).__setitem__(1, 9), lambda t: t.unsqueeze(1).squeeze(1).__setitem__(1, 9),
        lambda t: t.flip(0).__setitem__(0, 9), lambda t: t.transpose(0, 1)[1:3].T.__setitem__((0, 1), 9),
        lambda t: t.unflatten(1, (2, 2)).__setitem__((slice(None), 1), 9), lambda t: t.swapaxes(0, 1)[0].__imul__(3),
        lambda t: t.clone().__setitem__(0, 9), lambda t: t.expand(3, 4).__setitem__(0, 9),
    ]  # fmt: skip
    for number, form in enumerate(forms):
        values = np.arange(12, dtype=np.float32).reshape(3, 4)
        ours, theirs = Tensor(values), torch.tensor(values)
        results = form(ours), form(theirs)
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), err_msg=str(number))
        if results[1] is not None:
            np.testing.assert_array_equal(results[0].numpy(), results[1].numpy(), err_msg=str(number))
