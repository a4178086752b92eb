from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import DType, ShapeError, Tensor, dtypes, einsum
from tests.kernmill.against import close, same, values, with_torch

SHAPES = [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((5, 2, 3), (5, 3, 4)),
          ((2, 1, 4, 3), (5, 3, 2)), ((3,), (5, 3, 2)), ((5, 2, 3), (3,)), ((1, 1), (1, 1))]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_matmul_is_torchs(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    with_torch(lambda x, y: x @ y, lambda x, y: x @ y, [values(*a), values(*b, seed=1)])


FORMULAS = [
    ("ij,jk->ik", [(2, 3), (3, 4)]), ("ij,jk", [(2, 3), (3, 4)]), ("i,j->ij", [(2,), (3,)]), ("ii->i", [(3, 3)]),
    ("ii", [(3, 3)]), ("ij->ji", [(2, 3)]), ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]),
    ("...ij,...jk->...ik", [(5, 2, 3), (5, 3, 4)]), ("...ij,jk", [(5, 2, 3), (3, 4)]), ("ij,ij->", [(2, 3), (2, 3)]),
    ("ij->", [(2, 3)]), ("iij,jk->ik", [(2, 2, 3), (3, 4)]), ("i...->...", [(2, 3, 4)]),
    ("ij , j -> i", [(2, 3), (3,)]), ("ij,kj->k", [(2, 3), (4, 3)]), ("ij,kl->", [(2, 3), (4, 5)]),
    ("...i,j->...", [(5, 2, 3), (4,)]), ("iij,jk->", [(2, 2, 3), (3, 4)]), ("ij,ij->ji", [(2, 1), (1, 3)]),
]  # fmt: skip


@pytest.mark.parametrize(("formula", "shapes"), FORMULAS)
def test_einsum_is_numpys(formula: str, shapes: list[tuple[int, ...]]) -> None:
    arrays = [values(*shape, seed=n) for n, shape in enumerate(shapes)]
    close(einsum(formula, *(Tensor(a) for a in arrays)), np.einsum(formula, *arrays), 1e-5)


def test_einsum_adds_up_letters_of_one_operand_in_the_dtype_of_all() -> None:
    small, large = np.full((50, 2), 100, np.int8), values(2, 3)
    close(einsum("ij,jk->k", Tensor(small), Tensor(large)), np.einsum("ij,jk->k", small, large), 1e-5)
    flags = np.array([[True, True], [False, False]])
    np.testing.assert_array_equal(Tensor(flags).einsum(formula="ij->i").numpy(), np.einsum("ij->i", flags))


def test_linear_and_outer() -> None:
    torch = pytest.importorskip("torch")
    linear = torch.nn.functional.linear
    inputs = [values(4, 3), values(5, 3, seed=1), values(5, seed=2)]
    with_torch(lambda x, w, b: x.linear(w, b), linear, inputs)
    close(Tensor(inputs[2]).outer(Tensor(inputs[2])), np.outer(inputs[2], inputs[2]))


def test_half_types_accumulate_in_float32() -> None:
    ones = np.ones((1, 4096), np.float16)
    assert (Tensor(ones) @ Tensor(ones).T).item() == 4096
    assert (Tensor(ones) @ Tensor(ones).T).dtype is dtypes.float16


def test_ints_wrap_in_their_dtype() -> None:
    a = np.array([[100, 100]], np.int8)
    same(Tensor(a) @ Tensor(a).T, a @ a.T)
    same(Tensor([[1, 2]]) @ Tensor([[3], [4]]), np.array([[11]]))
    b = np.array([[True, False]])
    same(Tensor(b) @ Tensor(b).T, b @ b.T)


def test_empty_products() -> None:
    same(Tensor.zeros(2, 0) @ Tensor.zeros(0, 3), np.zeros((2, 3), np.float32))
    same(Tensor.zeros(0, 2) @ Tensor.zeros(2, 3), np.zeros((0, 3), np.float32))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("size", [5, 37])
def test_bytes_times_themselves(size: int, dtype: type[np.int8] | type[np.uint8]) -> None:
    """Named regression: rows and columns of one buffer were taken for parts of one number and staged together."""
    a = np.random.default_rng(0).integers(0, 120, (size, size)).astype(dtype)
    x, wide = Tensor(a).realize(), a.astype(np.int32)
    for ours, wanted in (
        (x.cast(dtypes.int32) @ x.cast(dtypes.int32), wide @ wide),
        (x.cast(dtypes.int32) @ x.cast(dtypes.int32).T, wide @ wide.T),
        ((x & 15).cast(dtypes.int32) @ (x // 16).cast(dtypes.int32), (wide & 15) @ (wide // 16)),
    ):
        np.testing.assert_array_equal(ours.numpy(), wanted)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.float32], ids=str)
@pytest.mark.parametrize(("rows", "terms"), [(1201, 1024), (1201, 1031), (3, 1 << 19), (2, 1 << 20)])
def test_a_vector_by_a_matrix_that_no_cache_holds(dtype: DType, rows: int, terms: int, device: str) -> None:
    """Whole and broken vectors, long rows, one factor that outgrows a cache or both: sums are exact."""
    if device == "PYTHON":
        pytest.skip("it has neither vectors nor a cache, and takes 10 to 20 s for each")
    rng = np.random.default_rng(0)
    matrix, vector = rng.integers(-3, 4, (rows, terms)), rng.integers(-3, 4, terms)
    weight = Tensor(matrix.astype(np.float32)).cast(dtype).realize()
    found = Tensor(vector.astype(np.float32)).linear(weight)
    np.testing.assert_array_equal(found.numpy(), matrix @ vector)


AXES = [0, 1, 2, ([0, 2], [0, 2]), ([1], [-1])]


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_tensordot_is_numpys(axes: Any) -> None:
    a, b = values(2, 3, 2), values(3 if axes in (1, 2) else 2, 2, 2 if axes != ([1], [-1]) else 3, seed=1)
    b = values(2, 2, 3, seed=1) if axes == 1 else b
    close(Tensor(a).tensordot(Tensor(b), axes), np.tensordot(a, b, axes), 1e-5)
    if isinstance(axes, int):
        close(Tensor(a).tensordot(Tensor(b), np.int64(axes)), np.tensordot(a, b, axes), 1e-5)  # type: ignore[arg-type]


def test_tensordot_of_other_sizes() -> None:
    with pytest.raises(
        ShapeError, match=r"tensordot: axes \(1,\) of shape \(2, 3\) and axes \(0,\) of \(2, 3\) differ"
    ):
        Tensor.ones(2, 3).tensordot(Tensor.ones(2, 3), 1)


def test_angles_and_distances_are_torchs() -> None:
    a, b = values(4, 5), values(4, 5, seed=1)
    with_torch(lambda x, y: x.cosine_similarity(y), lambda x, y: torch_cosine(x, y, 1), [a, b], 1e-5)
    with_torch(lambda x, y: x.cosine_similarity(y, 0), lambda x, y: torch_cosine(x, y, 0), [a, b], 1e-5)
    for p in (1.0, 2.0):
        with_torch(lambda x, y: x.cdist(y[:3], p), lambda x, y: torch_cdist(x, y[:3], p), [a, b], 1e-5)  # noqa: B023
    with pytest.raises(ShapeError, match="cdist: shapes"):
        Tensor.ones(2).cdist(Tensor.ones(2))


def torch_cosine(x: Any, y: Any, axis: int) -> Any:
    return pytest.importorskip("torch").nn.functional.cosine_similarity(x, y, dim=axis)


def torch_cdist(x: Any, y: Any, p: float) -> Any:
    return pytest.importorskip("torch").cdist(x, y, p)


def test_angles_of_tensors_that_broadcast() -> None:
    """Axes were counted in each tensor for itself."""
    a, b = values(2, 1, 5), values(3, 5, seed=1)
    with_torch(lambda x, y: x.cosine_similarity(y, 2), lambda x, y: torch_cosine(x, y, 2), [a, b], 1e-5)
    with_torch(lambda x, y: x.cosine_similarity(y, 0), lambda x, y: torch_cosine(x, y, 0), [b[0], b], 1e-5)


def test_the_number_of_differences_has_a_gradient_of_0() -> None:
    """cdist(p=0) and norm(0) led to no gradient at all: backward() raised."""
    a, b = values(4, 5), values(3, 5, seed=1)
    a[0] = b[0]
    with_torch(lambda x, y: x.cdist(y, 0.0), lambda x, y: torch_cdist(x, y, 0.0), [a, b])
    with_torch(lambda x: x.norm(0, 1), lambda x: x.norm(0, 1), [a])
    assert Tensor([np.nan, 0.0, 2.0]).norm(0).item() == 2
