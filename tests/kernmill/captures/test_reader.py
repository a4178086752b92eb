"""Arguments read by straight-line code: what looks different is noticed, and what is known quickly means the same."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from kernmill import Context, Tensor, Variable, jit, no_grad, train
from kernmill.captures.reader import MISS, read_call
from kernmill.lazy import is_training


def make_reader(args: Any, kwargs: Any) -> Callable[[Any, Any], Any] | None:
    """What code that has read a call knows: tensors, memory, values."""
    reading = read_call(args, kwargs)
    if reading is None:
        return None
    tensors, buffers = ("".join(f"{letter}{n}, " for n in range(len(reading.buffers))) for letter in "tb")
    read = reading.function([f" return ({tensors}), ({buffers}), {reading.values_text()}"])
    return lambda args, kwargs: None if (found := read(args, kwargs)) is MISS else found


@dataclass
class Pair:
    a: Any
    b: Any


class Odd:
    """Equal to all others of its kind, and not hashable."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Odd)

    __hash__ = None  # type: ignore[assignment]


def real(*values: float) -> Tensor:
    return Tensor(np.array(values, np.float32)).realize()


X, Y = real(1, 2), real(3, 4)
N = Variable("n", 0, 9)


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ((1,), (1,), True), ((1,), (2,), False), ((1,), (True,), False), ((1,), (1.0,), False), ((True,), (1,), False),
        ((0.0,), (-0.0,), False), ((float("nan"),), (float("nan"),), True), ((1.5,), (np.float64(1.5),), False),
        (("a",), ("a",), True), (("a",), (b"a",), False), ((None,), (None,), True), ((None,), (False,), False),
        ((1, 2), (1,), False), (([1, 2],), ([1, 2],), True), (([1, 2],), ((1, 2),), False),
        (([1, 2],), ([1, 2, 3],), False), (([1, 2],), (3,), False), (({"a": 1},), ({"a": 1},), True),
        (({"a": 1, "b": 2},), ({"b": 2, "a": 1},), False), (({"a": 1},), ({"c": 1},), False),
        (({1: 1},), ({True: 1},), False), (({(1, 2): 1},), ({(1, 2): 1},), True), (({0.0: 1},), ({-0.0: 1},), False),
        ((Pair(1, 2),), (Pair(1, 2),), True), ((Pair(1, 2),), (Pair(1, 3),), False), ((Pair(1, 2),), ((1, 2),), False),
        ((X,), (Y,), True), ((X,), (real(1),), False), ((X,), (X.int().realize(),), False), ((X,), (1,), False),
        ((X, Y), (Y, X), True), ((X, Y), (X, X), False), ((X,), (X + 1,), False),
        ((X,), (real(1, 2).reshape(1, 2),), False),
        ((X.reshape(1, 2),), (Y.reshape(1, 2),), True), ((Pair([X], {"k": Y}),), (Pair([Y], {"k": X}),), True),
        ((X,), (real(1, 2).requires_grad_(),), False), ((X, X.reshape(1, 2)), (X, X.reshape(1, 2)), False),
        ((N.bind(1),), (N.bind(5),), True), ((N.bind(1),), (1,), False),
        ((N.bind(1),), (Variable("n", 0, 8).bind(1),), False),
        ((len,), (len,), True), ((len,), (max,), False), ((Odd(),), (Odd(),), False),
        ((N.bind(1), N.bind(1)), (N.bind(1), N.bind(2)), False),
    ],
)  # fmt: skip
def test_what_looks_the_same(first: tuple[Any, ...], second: tuple[Any, ...], is_same: bool) -> None:
    """Never more than what is the same; what cannot be read by straight-line code is taken apart."""
    for args, kwargs, others, named in ((first, {}, second, {}), ((), {"x": first}, (), {"x": second})):
        read = make_reader(args, kwargs)
        assert (read is not None and read(others, named) is not None) == is_same


def test_what_is_found() -> None:
    read = make_reader(([X, 1], N.bind(3)), {"b": Y})
    assert read is not None
    found = read(([Y, 1], N.bind(4)), {"b": X})
    assert found is not None
    tensors, buffers, values = found
    assert tensors == (Y, X)
    assert [buffer.numel for buffer in buffers] == [2, 2]
    assert values == {"n": 4}
    assert read(([Y, 1], N.bind(4)), {"c": X}) is None
    assert read(([Y, 1], N.bind(4)), {}) is None


def test_settings_and_modes_count() -> None:
    read = make_reader((X,), {})
    assert read is not None
    for block in (no_grad(), train(False), Context(THREADS=1)):
        with block:
            assert read((X,), {}) is None
    assert read((X,), {}) is not None


def test_a_reader_made_in_a_context_serves_outside() -> None:
    """Named regression: it never did, and every later call was taken apart."""
    with Context(DEBUG=0):
        read = make_reader((X,), {})
    assert read is not None
    for block in (nullcontext(), Context(DEBUG=0), Context(), nullcontext()):
        with block:
            assert read((X,), {}) is not None


def agree(step: Any, plain: Callable[..., Tensor], *args: Any) -> None:
    np.testing.assert_allclose(step(*args).numpy(), plain(*args).numpy(), rtol=1e-6)


def test_calls_of_every_look_in_turn() -> None:
    def plain(x: Any, y: Any, k: Any) -> Tensor:
        result: Tensor = x * k + y * 2 + (1 if is_training() else 0)
        return result

    step = jit(plain)
    a, b, c = real(1, 2), real(3, 4), real(5)
    looks = [
        (a, b, 2),
        (a, b, 3),
        (b, a, 2),
        (a, a, 2),
        (a, c, 2),
        (a + 1, b, 2),
        (a, b.int().realize(), 2),
        (a, b, 2.0),
    ]
    for _ in range(4):
        for look in looks:
            agree(step, plain, *look)
        with train(False):
            agree(step, plain, *looks[0])
        with Context(DEVICE="PYTHON"):
            agree(step, plain, real(1, 2), real(3, 4), 2)


def test_an_argument_that_is_written_in_place() -> None:
    """Quickly known to be its tensor's own; not while another tensor, an expression or an array sees its memory."""

    @jit
    def put(cache: Tensor, x: Tensor) -> Tensor:
        cache[0:2] = x
        return cache.sum()

    cache, other = Tensor.zeros(4).realize(), Tensor.ones(4).realize()
    for value in range(4):
        assert put(cache, real(value, value)).item() == 2 * value
    seen = cache.reshape(2, 2)
    view = cache.numpy()
    lazy = cache + 1
    assert put(cache, real(9, 9)).item() == 18
    np.testing.assert_array_equal(seen.numpy(), [[9, 9], [0, 0]])  # a view
    np.testing.assert_array_equal(view, [3, 3, 0, 0])
    np.testing.assert_array_equal(lazy.numpy(), [4, 4, 1, 1])
    for value in range(3):
        assert put(other, real(value, value)).item() == 2 * value + 2
        assert put(cache, real(value, value)).item() == 2 * value
    kept = cache
    cache = Tensor.zeros(4).realize()
    assert put(cache, real(5, 5)).item() == 10
    np.testing.assert_array_equal(kept.numpy(), [2, 2, 0, 0])


def test_an_argument_that_becomes_state_of_the_function() -> None:
    weight = real(1, 2)
    step = jit(lambda x: x * weight)
    for x in (real(3, 4), real(5, 6), weight, real(3, 4), weight, real(1, 1)):
        np.testing.assert_array_equal(step(x).numpy(), x.numpy() * weight.numpy())


def test_an_argument_that_is_another_number_each_time_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Named regression: each value captured anew without a word, up to the 17th."""

    @jit
    def work(x: Tensor, beta: float, flag: bool = True, *, power: int = 2) -> Tensor:
        return x * beta + power

    for i in range(8):
        work(X, (0.5, 0.0, 1.0)[i % 3], i % 2 == 0)
    assert caplog.records == []
    assert [work(X, float(i)).tolist() for i in range(4)] == [[x * i + 2 for x in X.tolist()] for i in range(4)]
    for i in range(5):
        work(X, 1.0, power=i)
    assert [record.message.partition("was captured for ")[2].partition("; each")[0] for record in caplog.records] == [
        "4 values of the argument 'beta', now 2.0. Give it as a tensor, Tensor(beta)",
        "4 values of the argument 'power', now 3. Give it as a tensor, Tensor(power), or as Variable(..).bind(..) "
        "where it is a size",
    ]
