from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernmill import DTypeError, IndexRangeError, ShapeError, Tensor, dtypes
from kernmill.ir import Ops, UOp, evaluate
from kernmill.runtime import download
from tests.kernmill.against import close, same, values, with_torch

X = values(4, 5, 6)
I = np.array([0, -1, 2])  # noqa: E741
J = np.array([[1, 3, 0], [-2, 3, 3]])

INDICES: list[Any] = [
    0, -1, np.int64(2), (1, 2), (1, -2, 3), slice(None), slice(1, 3), slice(None, None, 2), slice(None, None, -1),
    slice(4, 1, -2), slice(-3, None), slice(10, 20), slice(3, 1), slice(-100, 100, 3), (slice(None), 2), (..., 0),
    (0, ...),
    ..., None, (None, 0, ..., None), (slice(1, 3), None, 2), (slice(None, None, -2), slice(1, None, 3), -1),
    I, [0, 2], (slice(None), I), (I, I), (I, slice(None), I), (0, I), (I, 0), (0, slice(None), I), (J, I),
    (None, I, None, 1),
    (..., J), (slice(1, 3), J, slice(None, None, 2)), (I, slice(None), 0), ([[0], [1]], [0, 1, 2]), (J,),
]  # fmt: skip


def tensors_in(index: Any) -> Any:
    """Arrays as tensors, so that they are checked when realized."""
    if isinstance(index, tuple):
        return tuple(tensors_in(i) for i in index)
    return Tensor(index) if isinstance(index, np.ndarray) else index


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_reading_is_numpys(index: Any) -> None:
    want = X[index]
    same(Tensor(X)[index], want)
    same(Tensor(X)[tensors_in(index)], want)


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_writing_is_numpys(index: Any) -> None:
    for value in (7.0, values(*X[index].shape, seed=3)):
        want = X.copy()
        want[index] = value
        t = Tensor(X)
        t[tensors_in(index)] = value
        same(t, want)


def index_counts_ints(index: Any) -> bool:
    torch = pytest.importorskip("torch")
    return bool(tuple(torch.tensor(X)[index].shape) != X[index].shape)


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_gradients_of_reading_are_torchs(index: Any) -> None:
    if any(isinstance(i, slice) and (i.step or 1) < 0 for i in (index if isinstance(index, tuple) else (index,))):
        pytest.skip("PyTorch has no negative steps")
    if index_counts_ints(index):
        pytest.skip("PyTorch does not count ints as advanced indices")
    with_torch(lambda t: t[index], lambda t: t[index], [X])


def test_gradients_of_writing() -> None:
    def write(t: Any, v: Any) -> Any:
        t = t * 1
        t[1:3, ::2] = v
        t[0] = 3.0
        return t * t

    with_torch(write, write, [X, values(2, 3, 6, seed=2)])


def test_gradient_of_advanced_writing() -> None:
    def write(t: Any, v: Any) -> Any:
        t = t * 1
        t[[0, 2]] = v
        return t * t

    with_torch(write, write, [X, values(2, 5, 6, seed=2)])


def test_an_empty_list_selects_nothing() -> None:
    same(Tensor(X)[[]], X[[]])
    t = Tensor(X)
    t[[]] = 1
    same(t, X)


def test_strided_assignment_changes_only_its_places() -> None:
    t = Tensor(np.zeros(6, np.float32)).realize()
    t[::2] = 1
    assert t.tolist() == [1, 0, 1, 0, 1, 0]
    t[::-3] = Tensor([5.0, 6.0])
    assert t.tolist() == [1, 0, 6, 0, 1, 5]


def test_a_view_made_before_a_write_shows_it_and_what_was_computed_stays() -> None:
    a = Tensor(np.zeros(3, np.float32))
    view, realized = a.reshape(3, 1), (a + 0).realize()
    a[1] = 5
    assert a.tolist() == [0, 5, 0]
    assert view.tolist() == [[0], [5], [0]]
    assert realized.tolist() == [0, 0, 0]


def test_writing_casts_and_broadcasts() -> None:
    t = Tensor(np.zeros((2, 3), np.int32))
    t[:, 1] = 2.9
    t[1] = Tensor([[1, 2, 3]])
    assert t.tolist() == [[0, 2, 0], [1, 2, 3]]


def test_bool_masks_write() -> None:
    t = Tensor(X)
    want = X.copy()
    t[Tensor(X) > 0] = 0
    want[want > 0] = 0
    same(t, want)
    mask = np.array([True, False, True, False])
    t[mask] = Tensor(values(5, 6))
    want[mask] = values(5, 6)
    same(t, want)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_and_its_gradient_are_torchs(axis: int) -> None:
    torch = pytest.importorskip("torch")
    index = np.random.default_rng(0).integers(0, 3, (2, 4, 5))
    with_torch(lambda t: t.gather(axis, Tensor(index)), lambda t: torch.gather(t, axis, torch.tensor(index)), [X])
    same(Tensor(X).gather(axis, Tensor(index)), torch.gather(torch.tensor(X), axis, torch.tensor(index)).numpy())


def test_take_along_dim() -> None:
    index = np.argsort(X, 1)
    same(Tensor(X).take_along_dim(Tensor(index), 1), np.take_along_axis(X, index, 1))
    same(Tensor(X).take_along_dim(Tensor(index[:1]), 1), np.take_along_axis(X, index[:1], 1))
    same(Tensor(X).take_along_dim(Tensor([3, 7])), X.reshape(-1)[[3, 7]])


@pytest.mark.parametrize("reduce", [None, "add", "multiply"])
@pytest.mark.parametrize("axis", [0, 1])
def test_scatter_is_torchs(axis: int, reduce: str | None) -> None:
    torch = pytest.importorskip("torch")
    x, v = values(4, 5), values(3, 4, seed=2)
    index = np.stack([np.random.default_rng(row).permutation(4)[:4] for row in range(3)])
    index = index if reduce is None and axis == 1 else np.array([[0, 1, 2, 3], [1, 2, 3, 0], [2, 3, 0, 1]])
    theirs = torch.tensor(x)
    if reduce is None:
        want = theirs.scatter(axis, torch.tensor(index), torch.tensor(v))
    else:
        want = theirs.scatter_reduce(
            axis, torch.tensor(index), torch.tensor(v), {"add": "sum", "multiply": "prod"}[reduce]
        )
    got = Tensor(x).scatter(axis, Tensor(index), Tensor(v), reduce)
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6)


def test_the_last_of_equal_indices_counts() -> None:
    t = Tensor(np.zeros(3, np.float32))
    t[[1, 1, 1]] = Tensor([1.0, 2.0, 3.0])
    assert t.tolist() == [0, 3, 0]
    assert Tensor.zeros(3).scatter(0, Tensor([2, 2]), Tensor([1.0, 4.0])).tolist() == [0, 0, 4]
    assert Tensor.zeros(3).scatter_add(0, Tensor([2, 2]), Tensor([1.0, 4.0])).tolist() == [0, 0, 5]


def test_index_select() -> None:
    same(Tensor(X).index_select(1, [4, 0]), X[:, [4, 0]])


OUTSIDE: list[Callable[[Tensor], Any]] = [
    lambda t: t[Tensor([5])],
    lambda t: t[Tensor(-4) - 1],
    lambda t: t[:, Tensor([0]) + 5],
    lambda t: t.gather(0, Tensor(np.full((1, 1, 1), 4))),
    lambda t: t.index_select(2, Tensor([6])),
]


@pytest.mark.parametrize("number", range(len(OUTSIDE)))
def test_computed_indices_are_checked_when_realized(number: int) -> None:
    lazy = OUTSIDE[number](Tensor(X))
    with pytest.raises(IndexRangeError, match="a computed index is outside axis"):
        lazy.realize()


def test_infinity_elsewhere_does_not_leak() -> None:
    x = np.array([[np.inf, 1.0], [np.nan, 2.0]], np.float32)
    same(Tensor(x)[:, [1]], x[:, [1]])
    t = Tensor(x, requires_grad=True)
    same(t.gather(1, Tensor([[1], [1]])).detach(), x[:, [1]])


def test_sizes_that_are_known_at_launch_only() -> None:
    n = UOp(Ops.VARIABLE, dtypes.index, (), ("n", 1, 4))
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    t = Tensor(x)

    def run(result: Tensor, value: int) -> Any:
        memory = {u: download(u).reshape(u.shape) for u in result.uop.toposort() if u.storage is not None}
        return evaluate(result.uop, memory, {"n": value})

    part = t[:n]
    assert part.uop.shape[0] is n
    np.testing.assert_array_equal(run(part, 3), x[:3])
    np.testing.assert_array_equal(run(part.sum(0), 2), x[:2].sum(0))
    np.testing.assert_allclose(run(part.mean(0), 3), x[:3].mean(0))
    np.testing.assert_array_equal(
        run(part.reshape((part.shape[0], 2, 3)).permute(1, 0, 2), 3), x[:3].reshape(3, 2, 3).transpose(1, 0, 2)
    )
    np.testing.assert_allclose(run(part @ t.T, 2), x[:2] @ x.T)
    np.testing.assert_array_equal(run(t[n - 1], 4), x[3])
    np.testing.assert_array_equal(run(t + n, 2), x + 2)
    cache = t.contiguous()
    cache[n - 1 : n] = Tensor.zeros(1, 6)
    want = x.copy()
    want[1] = 0
    np.testing.assert_array_equal(run(cache, 2), want)


M4, M5 = np.array([1, 0, 1, 1], bool), np.array([0, 1, 1, 0, 1], bool)
MASKS: list[Any] = [
    M4, [True, False, True, True], (slice(None), M5), X[:, :, 0] > 0, (X[:, :, 0] > 0, slice(None, None, 2)), X > 0,
    (M4, slice(None), [0, 2, 3]), (M4, None, [0, 1, 2]), (slice(1, 3), M5), (..., X[0, 0] > 0), np.zeros(4, bool),
    True, False, np.True_, (0, True), (True, slice(None), [0, 1]), (..., True), (None, M4),
]  # fmt: skip


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_reading_by_a_mask_known_on_the_host_is_numpys(mask: Any) -> None:
    same(Tensor(X)[mask], X[mask])


def test_a_mask_of_the_wrong_length() -> None:
    with pytest.raises(IndexRangeError, match=r"a mask of shape \(2,\) for axes of shape \(4,\)"):
        Tensor(X)[[True, False]]
    with pytest.raises(ShapeError, match="rows differ in length"):
        Tensor(X)[[[True], [True, False]]]


@pytest.mark.parametrize("step", [1, 5, 9, -1])
def test_rows_looked_up_by_a_column_of_small_numbers(step: int) -> None:
    """Places far apart, or backwards: the numbers are gathered too."""
    table, index = np.arange(256, dtype=np.float32), np.random.default_rng(0).integers(0, 250, (64, abs(step)))
    column = Tensor(index.astype(np.uint8))[:, 0]
    column = column.flip(0) if step < 0 else column
    same(Tensor(table)[column], table[index[:, 0][:: 1 if step > 0 else -1]])
    same(Tensor(table)[column + 1], table[index[:, 0][:: 1 if step > 0 else -1] + 1])


N = np.arange(24).reshape(2, 3, 4)
ROWS, MANY = np.array([True, False, True]), N % 3 == 0


@pytest.mark.parametrize(
    ("index", "value"),
    [
        ((slice(None), ROWS), 7),
        ((slice(None), ROWS), np.arange(16).reshape(2, 2, 4)),
        ((0, ROWS), 5),
        ((slice(None), ROWS, 0), 9),
        ((Ellipsis, np.array([True, False, False, True])), 1),
        ((None, ROWS[:2]), 3),
        (MANY, np.arange(8)),
        (MANY.tolist(), np.arange(8)),
        ([True, False], 3),
        (ROWS[:2], np.arange(12).reshape(1, 3, 4)),
        ((ROWS[:2], ROWS), 1),
        (np.zeros((2, 3, 4), bool), np.zeros(0, int)),
        (True, 4),
        (False, 4),
    ],
    ids=str,
)
def test_masks_known_on_the_host_are_written_as_they_are_read(index: Any, value: Any) -> None:
    """Once a mask was refused unless it was the whole index and one value was given."""
    wanted, found = N.copy(), Tensor(N)
    wanted[index] = value
    found[index] = Tensor(value) if isinstance(value, np.ndarray) else value
    same(found, wanted)


def test_masks_that_cannot_be_written() -> None:
    with pytest.raises(ShapeError, match="rows differ in length"):
        Tensor(N)[[[True], [False, True]]] = 1


LONE: list[Any] = [
    (False, 0),
    (0, True),
    (True, slice(None), 1),
    (slice(None), False),
    (..., True),
    (None, True, 0),
    True,
]


@pytest.mark.parametrize("index", LONE, ids=str)
def test_true_and_false_among_other_indices_are_written(index: Any) -> None:
    """They could be read, and were refused where they were written."""
    wanted, found = N.copy(), Tensor(N)
    wanted[index] = 7
    found[index] = 7
    same(found, wanted)


def test_sums_at_entries_of_an_axis() -> None:
    index, rows = np.array([2, 0, 2]), values(2, 3, 4, seed=1)
    with_torch(
        lambda t, v: t.index_add(1, Tensor(index), v),
        lambda t, v: t.index_add(1, v.new_tensor(index).long(), v),
        [values(2, 3, 4), rows],
        1e-5,
    )
    x = np.zeros((2, 3, 4), np.float32)
    for place, entry in enumerate(index):
        x[..., entry] += 2 * rows[..., place]
    close(Tensor.zeros(2, 3, 4).index_add(-1, Tensor(index), Tensor(rows[..., :3]), alpha=2), x)
    with pytest.raises(ShapeError, match=r"index_add: values of shape \(2,\)"):
        Tensor.zeros(3, 4).index_add(0, Tensor([0, 1]), Tensor([1.0, 2.0]))


def test_numbers_are_counted() -> None:
    x, weights = np.array([2, 0, 2, 4]), np.array([1, 2, 3, 4], np.float32)
    same(Tensor(x).bincount(minlength=6), np.bincount(x, minlength=6))
    same(Tensor(x).bincount(Tensor(weights), 5), np.bincount(x, weights).astype(np.float32))
    with pytest.raises(IndexRangeError, match="bincount: a class outside 0 to 3"):
        Tensor(x).bincount(minlength=4).realize()
    with pytest.raises(ShapeError, match="Pass minlength=, a number above all values"):
        Tensor(x).bincount()


def test_sums_at_the_only_entry_of_a_number() -> None:
    assert Tensor(3.0).index_add(0, Tensor([0, 0]), Tensor([1.0, 2.0])).item() == 6


def test_index_add_keeps_the_dtype() -> None:
    """A float alpha made floats of ints, and bools became int64."""
    index = Tensor([0, 1, 1])
    same(Tensor([True, False]).index_add(0, index, Tensor([False, True, True])), np.array([True, True]))
    small = Tensor([1, 2], dtypes.int8)
    same(small.index_add(0, index, Tensor([1, 1, 1], dtypes.int8), alpha=2), np.array([3, 6], np.int8))
    same(small.half().index_add(0, index, Tensor.ones(3), alpha=0.5), np.array([1.5, 3], np.float16))
    half: Any = np.float32(0.5)  # neither a Python float nor an int
    for given, alpha in ((Tensor([1, 1, 1]), 1.5), (Tensor([1, 1, 1]), half), (Tensor([1.0, 1.0, 1.0]), 1)):
        with pytest.raises(DTypeError, match=r"index_add: .* cannot be stored in a int8 tensor. Cast one of them."):
            small.index_add(0, index, given, alpha=alpha)
