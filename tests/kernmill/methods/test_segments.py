"""Rows looked up and added up by computed places: compared, sorted, and as NumPy says; their gradients too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernmill import Context, IndexRangeError, ShapeError, Tensor, jit
from kernmill.methods import segments
from kernmill.methods.segments import added, is_long, is_sorted, last_named, looked_up

SIZES = [
    (1, 5, 7, 3),
    (1, 7, 1, 2),
    (3, 16, 4, 1),
    (2, 9, 40, 2),
    (1, 33, 1, 1),
    (1, 90, 67, 1),
    (2, 31, 33, 20),
]  # rows, count, places, depth


@pytest.fixture(params=["compared", "parted", "sorted"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """`parted`: a table for each few entries, to whose places they go where places are many."""
    if request.param == "compared":
        monkeypatch.setattr(segments, "_BRIEF", 1 << 60)
    else:
        for limit in ("_FEW", "_BRIEF", "_TABLE"):
            monkeypatch.setattr(segments, limit, 0)
        monkeypatch.setattr(segments, "_LEAST", 4)
    is_sorting = request.param == "sorted"
    monkeypatch.setattr(segments, "is_sorted", lambda index, places, depth: is_sorting and index.node_shape[1] != 0)
    return str(request.param)


def given(rows: int, count: int, places: int, depth: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(count)
    return rng.standard_normal((rows, count, depth)).astype(np.float32), rng.integers(0, places, (rows, count))


def numpy_sums(x: np.ndarray, index: np.ndarray, places: int) -> np.ndarray:
    want = np.zeros((len(x), places, x.shape[2]), x.dtype)
    for row, named, values in zip(want, index, x, strict=True):
        np.add.at(row, named, values)
    return want


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sums_of_what_names_a_place(device: str, way: str, size: tuple[int, int, int, int]) -> None:
    x, index = given(*size)
    got = added(Tensor(x), Tensor(index), size[2])
    assert np.allclose(got.numpy(), numpy_sums(x, index, size[2]), atol=1e-5)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_last_that_names_a_place(device: str, way: str, size: tuple[int, int, int, int]) -> None:
    x, index = given(*size)
    found, values = (t.numpy() for t in last_named(Tensor(x), Tensor(index), size[2]))
    for row in range(size[0]):
        named = dict(zip(index[row].tolist(), x[row], strict=True))
        assert set(np.flatnonzero(found[row])) == set(named)
        assert all(np.array_equal(values[row, place], value) for place, value in named.items())


@pytest.mark.parametrize(("count", "depth"), [(50, 33), (64, 65), (100, 17), (31, 100)])
def test_each_number_of_an_entry_names_its_own_place(device: str, count: int, depth: int) -> None:
    """A width that no block of lanes divides read past the end of the index; some of it names no place."""
    rng, size = np.random.default_rng(0), 200
    index = rng.integers(-2, size + 2, (count, depth))
    x = rng.integers(-9, 9, (count, depth)).astype(np.float32)
    hit = Tensor.arange(size).reshape(-1, 1, 1).eq(Tensor(index[None]))
    got = Tensor(x[None]).where(hit, 0).sum(1).numpy()
    assert np.array_equal(got, np.where(np.arange(size)[:, None, None] == index, x, 0).sum(1))


def test_nothing_leaks_into_other_places(device: str, way: str) -> None:
    x = np.array([np.nan, 1, np.inf, 2, 4, -np.inf], np.float32).reshape(1, -1, 1)
    got = added(Tensor(x), Tensor([[3, 0, 1, 0, 4, 1]]), 6).numpy().reshape(-1)
    assert np.array_equal(got, np.array([3, np.nan, 0, np.nan, 4, 0], np.float32), equal_nan=True)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "int64", "float16"])
def test_sums_in_every_kind_of_number(device: str, way: str, dtype: str) -> None:
    x, index = np.arange(100, 120).astype(dtype).reshape(1, -1, 1), np.arange(20)[None] % 3
    with np.errstate(over="ignore"):
        want = numpy_sums(x, index, 4)
    got = added(Tensor(x), Tensor(index), 4)
    assert got.numpy().dtype == want.dtype
    assert np.array_equal(got.numpy(), want)


def test_half_types_are_added_in_float32(device: str, way: str) -> None:
    ones = Tensor(np.ones((1, 4096, 1), np.float16))
    assert added(ones, Tensor(np.zeros((1, 4096), np.int64)), 1).item() == 4096


def test_the_order_of_sums_is_that_of_the_entries(device: str, way: str) -> None:
    """The same numbers in any other company, and every time."""
    x = np.array([1e8, 1.0, -1e8, 1.0], np.float32).reshape(1, 4, 1)
    first = added(Tensor(x), Tensor([[2, 2, 2, 2]]), 3).numpy()[0, 2]
    assert all(added(Tensor(x), Tensor([[2, 2, 2, 2]]), 3).numpy()[0, 2] == first for _ in range(3))


CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "rows": lambda t, i, u: t[i] ** 3,
    "middle": lambda t, i, u: t.reshape((2, 3, 4)).swapaxes(0, 1)[:, i % 2] ** 2,
    "gather": lambda t, i, u: t.gather(1, (i % 4).reshape((3, 3))) ** 3,
    "scatter_add": lambda t, i, u: t.scatter_add(0, i.reshape((3, 3)), u) ** 3,
}


@pytest.mark.parametrize("call", CALLS)
def test_gradients_of_gradients_are_torchs(device: str, way: str, call: str) -> None:
    torch = pytest.importorskip("torch")
    x, index, u = given(1, 6, 4, 4)[0].reshape(6, 4), np.array([0, 5, 2, 5, 5, 1, 0, 2, 5]), np.ones((3, 3), np.float32)
    ours = [Tensor(x, requires_grad=True), Tensor(index), Tensor(u, requires_grad=True)]
    theirs = [torch.tensor(x, requires_grad=True), torch.tensor(index), torch.tensor(u, requires_grad=True)]
    got = CALLS[call](*ours).sum().gradient(ours[0])[0]
    (want,) = torch.autograd.grad(CALLS[call](*theirs).sum(), theirs[0], create_graph=True)
    assert np.allclose(got.numpy(), want.detach().numpy(), atol=1e-4)
    (twice,) = (got**2).sum().gradient(ours[0])
    (wanted,) = torch.autograd.grad((want**2).sum(), theirs[0])
    assert np.allclose(twice.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-4)


def test_only_the_last_value_gets_a_gradient(device: str, way: str) -> None:
    value = Tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    old = Tensor([[5.0, 6.0, 7.0]], requires_grad=True)
    (old.scatter(1, Tensor([[2, 0, 2]]), value) * Tensor([[1.0, 10.0, 100.0]])).sum().backward()
    assert value.grad is not None
    assert old.grad is not None
    assert value.grad.tolist() == [[0, 1, 100]]
    assert old.grad.tolist() == [[0, 10, 0]]


def test_rows_are_written(device: str, way: str) -> None:
    x, value = given(1, 8, 5, 6)[0].reshape(4, 2, 6), given(1, 18, 5, 2)[0].reshape(3, 2, 6)
    for index in (np.array([1, -1, 1]), (slice(None), slice(None), np.array([5, 0, 5]))):
        want, got = x.copy(), Tensor(x)
        part = value if isinstance(index, np.ndarray) else value[0, :, :1]
        want[index] = part
        got[index] = Tensor(part)
        assert np.array_equal(got.numpy(), want)


@pytest.mark.parametrize("shape", [(2, 0), (0, 2), (0, 0)])
def test_no_entries_change_nothing(way: str, shape: tuple[int, int]) -> None:
    index, value = Tensor(np.zeros(shape, np.int64)), Tensor(np.zeros(shape, np.float32))
    for reduce in (None, "add", "multiply"):
        assert Tensor.ones(2, 3).scatter(1, index, value, reduce).tolist() == [[1, 1, 1]] * 2
    assert Tensor.ones(2, 3).gather(1, index).shape == shape


def test_a_single_number_has_one_place(way: str) -> None:
    """It once had none: IndexError."""
    t, zero = Tensor(3.0), Tensor(0)
    assert t.gather(0, zero).item() == 3
    assert t.scatter(0, zero, Tensor(5.0)).item() == 5
    assert t.scatter_add(0, zero, Tensor(5.0)).item() == 8


@pytest.mark.parametrize("shape", [(2,), (3, 2)])
def test_an_index_that_does_not_fit_is_told(shape: tuple[int, ...]) -> None:
    """Its rows beyond those of the tensor were once left out."""
    index, value = Tensor(np.zeros(shape, np.int64)), Tensor(np.ones(shape, np.float32))
    x = Tensor.ones(2, 3)
    with pytest.raises(ShapeError, match="the index may be longer on axis 1 only"):
        x.scatter_add(1, index, value)
    with pytest.raises(ShapeError, match="the index may be longer on axis 1 only"):
        x.gather(1, index)


def test_a_place_outside_is_told(device: str, way: str) -> None:
    with pytest.raises(IndexRangeError):
        Tensor([1.0, 2.0]).scatter_add(0, Tensor([0, 2]), Tensor([1.0, 1.0])).realize()


def test_a_capture_replays_it(device: str, way: str) -> None:
    @jit
    def gradient(weight: Tensor, index: Tensor) -> Tensor:
        leaf = weight.detach().requires_grad_()
        (leaf[index] * 2).sum().backward()
        assert leaf.grad is not None
        return leaf.grad.realize()

    for index in ([0, 0, 1], [2, 1, 2], [2, 2, 2], [0, 1, 1]):
        got = gradient(Tensor(np.ones((3, 2), np.float32)), Tensor(index)).numpy()
        assert got[:, 0].tolist() == [2 * index.count(place) for place in range(3)]


def test_looking_up_and_adding_up_are_each_others_gradient(device: str, way: str) -> None:
    x, index = given(2, 6, 5, 3)
    t = Tensor(x, requires_grad=True)
    (grad,) = looked_up(t, Tensor(index % 6)).sum().gradient(t)
    assert np.allclose(grad.numpy(), numpy_sums(np.ones_like(x), index % 6, 6))
    (grad,) = added(t, Tensor(index), 5).square().sum().gradient(t)
    sums = numpy_sums(x, index, 5)
    assert np.allclose(grad.numpy(), 2 * np.take_along_axis(sums, index[..., None], 1), atol=1e-4)


def test_what_has_a_kernel_of_its_own() -> None:
    assert is_long(8192, 50257, 768)
    assert is_long(100, 100, 100)
    assert not is_long(2, 50257, 768)  # a few entries are compared while the sum is written
    assert is_long(32, 10**7, 1)  # of which each takes as long as filling the places, or half of it
    assert not is_long(100, 100, 4)


@pytest.mark.parametrize("target", ["", "avx2"])
@pytest.mark.parametrize(("rows", "count", "size"), [(200, 64, 64), (40, 9, 400), (1, 12, 9000)])
def test_few_entries_of_rows_go_to_their_places(rows: int, count: int, size: int, target: str) -> None:
    """64 entries of each of 1000 rows were compared with all places: 4 to 10 times as long as PyTorch."""
    assert is_long(count, size, 1, rows)
    rng = np.random.default_rng(0)
    x, index = rng.standard_normal((rows, count)).astype(np.float32), rng.integers(-size, size, (rows, count))
    with Context(DEVICE="LLVM", TARGET=target):
        got = Tensor.zeros(rows, size).scatter_add(1, Tensor(index), Tensor(x)).numpy()
    assert np.allclose(got, numpy_sums(x[..., None], index % size, size)[..., 0], atol=1e-5)


def test_what_is_sorted() -> None:
    def sorts(count: int, places: int, depth: int, target: str = "gpu", rows: int = 1) -> bool:
        with Context(DEVICE="PYTHON", TARGET=target):
            return is_sorted(Tensor(np.zeros((rows, count), np.int64)), places, depth)

    assert sorts(8192, 50257, 768)
    assert not sorts(8192, 8192, 768, "")  # without work-items each entry goes to its place
    assert not sorts(20000, 100000, 1, "")
    assert sorts(8192, 50257, 768, "")  # but filling them all before takes longer
    assert sorts(8192, 8192, 1)
    assert not sorts(1 << 22, 8, 1)  # once sorted, in nine times the time
    assert not sorts(1 << 20, 32, 1)
    assert not sorts(8192, 16, 768)
    assert sorts(1024, 4096, 1, rows=64)
