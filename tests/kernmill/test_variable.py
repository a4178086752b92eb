"""Variables: one capture serves every value, on each device, whatever the schedule does with the loops."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import Context, IndexRangeError, KernmillError, ShapeError, Tensor, Variable, jit, where

Array = np.ndarray[Any, np.dtype[Any]]
ROWS, WIDTH = 37, 19
X = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)
Q = np.random.default_rng(1).standard_normal((3, WIDTH)).astype(np.float32)
VALUES = (5, 6, 0, 1, 2, 16, 17, 31, 32, 33, ROWS - 3, 4)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    result: Array = e / e.sum(-1, keepdims=True)
    return result


def attention(x: Any, q: Any, n: Any) -> Any:
    seen = x[: n + 3]
    return (q @ seen.T).softmax(-1) @ seen


def causal(x: Any, q: Any, n: Any) -> Any:
    seen = x[: n + 3]
    mask = Tensor.arange(ROWS)[: n + 3] <= (Tensor.arange(3) + n).unsqueeze(-1)
    return where(mask, q @ seen.T, -np.inf).softmax(-1) @ seen


def causal_numpy(x: Array, q: Array, n: int) -> Array:
    scores = np.where(np.arange(n + 3) <= np.arange(n, n + 3)[:, None], q @ x[: n + 3].T, -np.inf)
    return softmax(scores) @ x[: n + 3]


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "rows": (lambda x, q, n: x[n : n + 3] * 2, lambda x, q, n: x[n : n + 3] * 2),
    "row": (lambda x, q, n: x[n], lambda x, q, n: x[n]),
    "sum": (lambda x, q, n: x[:n].sum(0), lambda x, q, n: x[:n].sum(0)),
    "sum of all": (lambda x, q, n: (x[: n + 1] * 2).sum(), lambda x, q, n: (x[: n + 1] * 2).sum()),
    "from the end": (lambda x, q, n: x[n:].sum(0), lambda x, q, n: x[n:].sum(0)),
    "between": (lambda x, q, n: x[n : n + 2].max(0), lambda x, q, n: x[n : n + 2].max(0)),
    "max": (lambda x, q, n: x[: n + 1].max(0), lambda x, q, n: x[: n + 1].max(0)),
    "mean": (lambda x, q, n: x[: n + 1].mean(0), lambda x, q, n: x[: n + 1].mean(0)),
    "columns": (lambda x, q, n: x.T[:, : n + 1].sum(-1), lambda x, q, n: x[: n + 1].sum(0)),
    "number": (lambda x, q, n: Tensor.arange(5) + n, lambda x, q, n: np.arange(5) + n),
    "product": (lambda x, q, n: x[:n].T @ x[:n], lambda x, q, n: x[:n].T @ x[:n]),
    "strided": (lambda x, q, n: x[: n + 1 : 2].sum(0), lambda x, q, n: x[: n + 1 : 2].sum(0)),
    "reversed": (
        lambda x, q, n: (x[: n + 1].flip(0) * x[: n + 1]).sum(0),
        lambda x, q, n: (x[n::-1] * x[: n + 1]).sum(0),
    ),
    "kept": (lambda x, q, n: (x[: n + 1].contiguous() + 1).sum(0), lambda x, q, n: (x[: n + 1] + 1).sum(0)),
    "mask": (
        lambda x, q, n: where((Tensor.arange(ROWS) < n).unsqueeze(-1), x, 0).sum(0),
        lambda x, q, n: x[:n].sum(0),
    ),
    "attention": (attention, lambda x, q, n: softmax(q @ x[: n + 3].T) @ x[: n + 3]),
    "causal": (causal, causal_numpy),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_capture_serves_every_value(name: str, device: str) -> None:
    ours, numpy = CASES[name]
    n = Variable("n", 0, ROWS - 3)
    with Context(DEVICE=device):
        step = jit(ours)
        x, q = Tensor(X).realize(), Tensor(Q).realize()
        for value in VALUES[:5] if device == "PYTHON" else VALUES:
            np.testing.assert_allclose(step(x, q, n.bind(value)).numpy(), numpy(X, Q, value), rtol=1e-4, atol=1e-4)
        assert step.cache_info().captures == 1


# sizes that differ in how they are calculated and are one: each of these was refused, or an error of Python's
SIZES: dict[str, Callable[..., Any]] = {
    "cat of equal": lambda x, n: x[:, :n].cat(x[:, :n], axis=1).sum(1),
    "cat of a cut": lambda x, n: x[:, :n].cat(x[:, n:], axis=1),
    "the last": lambda x, n: x[:, -n:].sum(1),
    "all but the last": lambda x, n: x[:, :-n].sum(1),
    "from the end": lambda x, n: x[:, -n],
    "padded to a known size": lambda x, n: (x[:, :n] * 2).pad(((0, 0), (0, 8 - n))),
    "padded by a size": lambda x, n: x[:, :n].pad(((0, 0), (2, n))).sum(1),
    "every second": lambda x, n: x[:, : 2 * n : 2] @ x[:, :n].T,
    "windows": lambda x, n: x[:, : n + 2].unfold(1, 3, 1).sum((1, 2)),
    "halves": lambda x, n: x[:, : 2 * n].chunk(2, 1)[1].sum(1),
    "rolled": lambda x, n: x.roll(n, 1),
    "rolled back": lambda x, n: x.roll(-n, 1),
    "rolled part back": lambda x, n: (x[:, :n].roll(-1, 1) * x[:, :n]).sum(1),
    "rolled part": lambda x, n: (x[:, :n].roll(1, 1) * x[:, :n]).sum(1),
    "arange": lambda x, n: Tensor.arange(n).sum(),
    "arange between": lambda x, n: Tensor.arange(n, 3 * n, 2) @ x[:, :n].T,
    "arange of floats": lambda x, n: x[:, :n] @ Tensor.arange(n, 2 * n, dtype=x.dtype),
    "arange of known length": lambda x, n: Tensor.arange(n, n + 3),
    "eye": lambda x, n: (x[:, :n] @ Tensor.eye(n)).sum(1),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_equal_sizes_are_one(name: str, device: str) -> None:
    n = Variable("n", 1, 5)
    with Context(DEVICE=device):
        step = jit(SIZES[name])
        x = Tensor(X[:4, :10]).realize()
        for value in (2, 5, 1, 4, 3):
            wanted = SIZES[name](x, value).numpy()
            np.testing.assert_allclose(step(x, n.bind(value)).numpy(), wanted, rtol=1e-5, atol=1e-5)
        assert step.cache_info().captures == 1


GRADIENTS: dict[str, Callable[..., Any]] = {
    "first": lambda x, n: (x[:, :n] ** 2).sum(),
    "between": lambda x, n: (x[:, n : n + 2] ** 2).sum(),
    "last": lambda x, n: (x[:, -n:] ** 2).sum(),
    "softmax": lambda x, n: (x[:, :n].softmax(1) ** 2).sum(),
    "cat": lambda x, n: (x[:, :n].cat(x[:, n:], axis=1) ** 2).sum(),
    "padded": lambda x, n: (x[:, :n].pad(((0, 0), (0, 10 - n))) * x).sum(),
    "product": lambda x, n: (x[:, :n] @ x[:, :n].T).sum(),
    "every second": lambda x, n: (x[:, : 2 * n : 2] ** 2).sum(),
    "flipped": lambda x, n: (x[:, :n].flip(1) * x[:, :n]).sum(),
    "max": lambda x, n: x[:, :n].max(1).sum(),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_through_parts(name: str) -> None:
    def gradient(x: Tensor, n: Any) -> Tensor:
        x = (x + 0).requires_grad_()
        GRADIENTS[name](x, n).backward()
        assert x.grad is not None
        return x.grad

    n, x, step = Variable("n", 1, 5), Tensor(X[:4, :10]).realize(), jit(gradient)
    for value in (2, 5, 1, 4, 3):
        wanted = gradient(x, value).numpy()
        np.testing.assert_allclose(step(x, n.bind(value)).numpy(), wanted, rtol=1e-5, atol=1e-5)


def test_sizes_that_do_not_fit() -> None:
    n, x = Variable("n", 0, 5), Tensor(X[:4, :10]).realize()
    for rule, message in (
        (lambda x, n: x[:, :n] + x[:, : n + 1], r"at axis -1 the sizes are n and n \+ 1\."),
        (lambda x, n: x[:, :n].reshape(3, n), r"\(4, n\) -> \(3, n\): n \* 4 elements do not make n \* 3\."),
        (lambda x, n: x[:, :n].pad(((0, 0), (0, 3 - n))), r"pad: \(4, n\) by .*: give one pair of sizes >= 0"),
        (lambda x, n: x[:, -n:], "some values of the variables are out of bounds"),  # -0 is the front
        (lambda x, n: Tensor.arange(n, 3), "arange: from n to 3 by 1: .* is negative for some values"),
        (lambda x, n: x[:, :n].chunk(2, 1)[0], "chunk: the symbolic size n may not divide evenly"),
        (lambda x, n: x[:, :n].roll(3, 1), "roll: shift 3 may exceed the symbolic size n"),
        (
            lambda x, n: x[:, :n].split(4, 1)[0],
            "split: the number of pieces of size 4 in the symbolic size n is not fixed",
        ),
        (lambda x, n: x[:, : n + 1].unfold(1, 2, 1), "the window spans 2 elements"),
        (lambda x, n: Tensor.linspace(0, 1, n), "n as an int: this symbolic size changes per call"),
        (lambda x, n: Tensor.rand(n), r"random tensor of shape \(n,\): sizes must be integers"),
    ):
        with pytest.raises(ShapeError, match=message):
            jit(rule)(x, n.bind(2))


def test_parts_are_written_where_the_value_says(device: str) -> None:
    n = Variable("n", 0, ROWS - 3)
    with Context(DEVICE=device):
        cache, wanted = Tensor(X).realize(), X.copy()

        @jit
        def put(cache: Tensor, new: Tensor, n: Any) -> Tensor:
            cache[n : n + 3] = new
            cache[n + 1, :2] = 7
            return cache[: n + 3].sum()

        for value in VALUES:
            total = put(cache, Tensor(Q * value), n.bind(value))
            wanted[value : value + 3] = Q * value
            wanted[value + 1, :2] = 7
            np.testing.assert_array_equal(cache.numpy(), wanted)
            np.testing.assert_allclose(total.numpy(), wanted[: value + 3].sum(), rtol=1e-4, atol=1e-4)
        assert put.cache_info()[:2] == (1, len(VALUES) - 2)


def test_parts_of_many_rows_go_to_threads() -> None:
    """A symbolic loop that is shared among threads ends where its value says."""
    rows = 5000
    x = np.random.default_rng(0).standard_normal((rows, 64)).astype(np.float32)
    n = Variable("n", 0, rows)

    @jit
    def put(t: Tensor, x: Tensor, n: Any) -> None:
        t[:n] = x[:n].exp() + n

    t, wanted, source = Tensor.zeros(rows, 64).realize(), np.zeros_like(x), Tensor(x)
    for value in (10, 4999, 0, 5000, 1, 64, 777):
        put(t, source, n.bind(value))
        wanted[:value] = np.exp(x[:value]) + value
        np.testing.assert_allclose(t.numpy(), wanted, rtol=1e-5)
    assert put.cache_info().captures == 1


@pytest.mark.parametrize("target", ["avx2", "sse"])
def test_narrower_targets(target: str) -> None:
    """In a process of its own: the target is chosen once."""
    check = "t.test_one_capture_serves_every_value(name, 'LLVM')"
    code = f"import tests.kernmill.test_variable as t\nfor name in t.CASES: {check}"
    root = Path(__file__).resolve().parent.parent.parent
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "TARGET": target}, cwd=root, check=True)


def test_two_variables_in_one_call() -> None:
    a, b = Variable("a", 0, 10), Variable("b", 0, 20)

    @jit
    def area(x: Tensor, a: Any, b: Any) -> Tensor:
        return x[a : a + b].sum(0)

    x = Tensor(X).realize()
    for p, q in ((1, 2), (3, 4), (10, 20), (0, 0), (5, 1)):
        np.testing.assert_allclose(area(x, a.bind(p), b.bind(q)).numpy(), X[p : p + q].sum(0), rtol=1e-4, atol=1e-5)
    assert area.cache_info().captures == 1


def test_nested_captures_and_containers() -> None:
    n = Variable("n", 1, 9)
    inner = jit(lambda x, places: x[: places[0]].sum(0) + places[1])

    @jit
    def outer(x: Tensor, places: Any) -> Any:
        return inner(x, places) * 2

    x = Tensor(X).realize()
    for value in (1, 5, 9, 4):
        want = (X[:value].sum(0) + value) * 2
        np.testing.assert_allclose(outer(x, (n.bind(value), n.bind(value))).numpy(), want, rtol=1e-4, atol=1e-5)
    assert outer.cache_info().captures == 1


def test_a_bound_variable_is_an_int_elsewhere() -> None:
    five = Variable("n", 1, 9).bind(5)
    assert five == 5
    assert list(range(9))[five] == 5
    np.testing.assert_array_equal(Tensor(X)[:five].numpy(), X[:5])


def test_dtype_and_shape_still_tell_captures_apart() -> None:
    n = Variable("n", 0, 8)
    wide = Variable("n", 0, 9)
    step = jit(lambda x, n: x[:n].sum())
    x = Tensor(X).realize()
    for value in (3, 4, 5):
        step(x, n.bind(value))
        step(x, wide.bind(value))
        step(x.T.contiguous().realize(), n.bind(value))
    assert step.cache_info().entries == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Variable("n", 0, 9).bind(10), r"n.bind: 10 is outside 0 to 9\."),
        (lambda: Variable("n", 0, 9).bind(-1), r"n.bind: -1 is outside 0 to 9\."),
        (lambda: Variable("n", 0, 9).bind(3.7), r"n.bind: 3\.7 is not an integer\."),  # type: ignore[arg-type]
        (lambda: Variable("n", 5, 4), r"Variable: 'n' from 5 to 4\."),
        (lambda: Variable("", 0, 4), r"Variable: '' from 0 to 4\."),
        (lambda: Variable("n", 0, 1 << 31), r"'n' from 0 to 2147483648\. .* bounds 0 <= least <= greatest < 2\*\*31\."),
    ],
)
def test_bad_variables(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        make()


class Opaque:
    """Not looked into: it says that it is of the standard library."""

    __module__ = "collections"
    kept: Tensor


def test_what_cannot_be_captured() -> None:
    n = Variable("n", 0, ROWS)
    x = Tensor(X).realize()
    with pytest.raises(ShapeError, match=r"realize: a tensor with the symbolic shape \(n, 19\) cannot be stored"):
        jit(lambda x, n: x[:n])(x, n.bind(3))
    box = Opaque()
    with pytest.raises(ShapeError, match=r"leaves a tensor of shape \(19,\) that is not computed and depends on n"):
        jit(lambda x, n: setattr(box, "kept", x.sum(0) + n))(x, n.bind(3))
    del box.kept
    with pytest.raises(ShapeError, match="some values of the variables are out of bounds"):
        jit(lambda x, n: x[: n + 1].sum())(x, n.bind(3))
    with pytest.raises(ShapeError, match="some values of the variables are out of bounds"):
        jit(lambda x, n: x[n - 1 :].sum())(x, n.bind(3))
    with pytest.raises(KernmillError, match="a list contains a bound variable"):
        jit(lambda parts: parts[0][: parts[1]].sum())([x, n.bind(3)])
    with pytest.raises(ShapeError, match=r"in one call\. Give each variable a unique name"):
        jit(lambda x, a, b: x[a:b].sum())(x, n.bind(3), n.bind(4))


def test_equal_constants_written_by_captured_functions() -> None:
    """The second tensor of zeros was taken for the first one, whose memory a replay writes."""
    n = Variable("n", 0, 4)
    kept = []
    for _ in range(3):
        x = Tensor.zeros(5).contiguous()

        def step(n: Any, x: Tensor = x) -> Tensor:
            x[n : n + 1] = x[n : n + 1] + 2
            return x + 1

        captured = jit(step)
        kept.append((captured, x))
        for at, expected in ((1, [1, 3, 1, 1, 1]), (2, [1, 3, 3, 1, 1]), (2, [1, 3, 5, 1, 1])):
            assert captured(n.bind(at)).tolist() == expected
    assert [x.tolist() for _, x in kept] == [[0, 2, 4, 0, 0]] * 3


def test_a_call_that_fails_leaves_no_assignment_behind() -> None:
    """An interrupt in the first step of a model made every later step fail: its cache waited for that step's place."""
    n = Variable("n", 0, ROWS - 1)
    cache = Tensor.zeros(ROWS).contiguous()
    fails = [True, True]

    def step(n: Any) -> Tensor:
        cache[n : n + 1] = cache[n : n + 1] + 2
        if fails:
            fails.pop()
            raise KeyboardInterrupt
        return cache + 1

    captured = jit(step)
    for at in (3, 4):
        with contextlib.suppress(KeyboardInterrupt):  # pytest.raises keeps the call's tensors
            captured(n.bind(at))
    assert not fails
    expected = np.zeros(ROWS, np.float32)
    for at in (1, 2, 2, 0):
        expected[at] += 2
        np.testing.assert_array_equal(captured(n.bind(at)).numpy(), expected + 1)
    np.testing.assert_array_equal(cache.numpy(), expected)


def test_a_size_without_a_value_is_refused() -> None:
    n = Variable("n", 0, 9)
    with pytest.raises(ShapeError, match=r"realize: the size n is nothing\. Give it a value from 0 to 9"):
        Tensor(X)[: n.uop].sum().realize()


def test_threads_have_values_of_their_own() -> None:
    """Named regression: while one thread captured, nodes of another one with the same name had its value."""
    found: list[bool] = []

    def work(number: int) -> None:
        n, x = Variable("n", 0, 15), Tensor.ones(32).realize()
        for start in range(8):
            total = jit(lambda x, n: x[: n + 1].sum())
            for value in ((start + number + step) % 16 for step in range(3)):
                found.append(total(x, n.bind(value)).item() == value + 1)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 72


def test_a_record_may_not_hold_a_variable() -> None:
    """Named regression: its value was that of the capture in every replay."""

    @dataclasses.dataclass
    class Given:
        x: Tensor
        n: Any

    with pytest.raises(KernmillError, match="Given contains a bound variable"):
        jit(lambda given: given.x + given.n)(Given(Tensor([1.0]), Variable("n", 0, 4).bind(2)))


def test_constants_of_a_symbolic_shape_have_the_values_of_each_call() -> None:
    """Named regression: ones_like names its device, and the sum of the first call was that of all others."""
    n, x = Variable("n", 1, 8), Tensor.ones(6, 8).realize()
    count = jit(lambda x, n: x[:, :n].ones_like().sum())
    assert [count(x, n.bind(value)).item() for value in (3, 5, 1, 8)] == [18, 30, 6, 48]


@pytest.mark.parametrize("columns", [32, 64, 512, 2048])
def test_products_of_rows_that_may_be_none(columns: int, device: str) -> None:
    """Named regression: one block of 0 rows ran once and read the row before the first, or its loop had no name."""
    if device == "PYTHON" and columns > 64:
        pytest.skip("takes most of a minute, for the same loops as with fewer columns")
    n, w = Variable("n", 0, 8), np.random.default_rng(0).standard_normal((64, columns)).astype(np.float32)
    x = np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)
    step = jit(lambda x, w, n: (x[:n] @ w).contiguous().sum(0))
    turned = jit(lambda x, w, n: (w.T @ x[:n].T).contiguous().sum(1))
    for value in (3, 8, 0, 1):
        for ours in (step, turned):
            got = ours(Tensor(x), Tensor(w), n.bind(value)).numpy()
            np.testing.assert_allclose(got, (x[:value] @ w).sum(0), rtol=1e-4, atol=1e-4)


def test_a_part_that_is_one_or_nothing_is_assigned_only_where_it_is() -> None:
    """A loop of at most one iteration is no loop, and its store ran for none as well."""
    count = Variable("n", 0, 1)

    @jit
    def front(kept: Tensor, x: Tensor, n: Any) -> Tensor:
        kept[:n] = x[:n]
        return kept.sum()

    @jit
    def back(kept: Tensor, x: Tensor, n: Any) -> Tensor:
        kept[n:] = x[n:]
        return kept.sum()

    for n in (0, 1, 0, 1):
        kept, x = Tensor.ones(1, 64).realize(), Tensor.full((1, 64), 7.0).realize()
        assert front(kept, x, count.bind(n)).item() == (448 if n else 64)
        kept = Tensor.ones(1, 64).realize()
        assert back(kept, x, count.bind(n)).item() == (64 if n else 448)


def test_a_row_by_a_variable_needs_no_check() -> None:
    """Bounds say that it is inside, so that no byte has to be looked at after each replay; others are still checked."""
    table = Tensor(np.arange(30, dtype=np.float32).reshape(10, 3)).realize()

    @jit
    def row(place: Any) -> Tensor:
        return table[Tensor(place).reshape(1, 1)]

    inside, beyond = Variable("p", 0, 9), Variable("q", 0, 10)
    for place in (3, 0, 9, 4):
        np.testing.assert_array_equal(row(inside.bind(place)).numpy(), [[[3 * place, 3 * place + 1, 3 * place + 2]]])
    (entry,) = (entry for entries in row._entries.values() for entry in entries)
    assert entry.replay.batch is not None  # nothing but kernels
    row(beyond.bind(9))
    for _ in range(2):
        row(beyond.bind(9))
        with pytest.raises(IndexRangeError, match="outside axis 0"):
            row(beyond.bind(10))


def test_state_that_moves_between_replays_is_seen() -> None:
    """What a replay relies on is looked at again as soon as any tensor has another node."""
    weight, total = Tensor([1.0, 2.0]).realize(), Tensor([0.0, 0.0]).realize()

    def add(x: Tensor) -> Tensor:
        total.assign(total + weight * x)
        return total * 1.0

    step, x = jit(add), Tensor([1.0]).realize()
    expected = np.zeros(2)
    for turn in range(9):
        if turn == 5:
            weight.replace(Tensor([10.0, 20.0]).realize())
        if turn == 7:
            weight.assign(weight * 2.0).realize()
        expected = expected + np.array([1.0, 2.0]) * (1 if turn < 5 else 10 if turn < 7 else 20)
        np.testing.assert_array_equal(step(x).numpy(), expected)
        np.testing.assert_array_equal(total.numpy(), expected)


def test_an_assignment_to_constants_is_made_anew_for_each_value() -> None:
    """Its node is that of a plan and outlives the call: with memory it gave what the first call had made."""
    n = Variable("n", 2, 7)

    @jit
    def placed(length: int) -> Tensor:
        row = Tensor.ones(1).pad([(length - 1, 0)])
        row[0] = 0
        return row.pad([(2, 7 - length)])

    for length in (3, 3, 4, 2, 4):
        assert placed(n.bind(length)).tolist() == [float(place == length + 1) for place in range(9)]


def test_a_variable_by_keyword() -> None:
    n, x = Variable("n", 0, 5), Tensor(np.ones(3, np.float32)).realize()
    times = jit(lambda x, n: x * n)
    assert [times(x, n=n.bind(value)).tolist() for value in (2, 3, 4, 5)] == [[value] * 3 for value in (2, 3, 4, 5)]
    assert times.cache_info().captures == 1
