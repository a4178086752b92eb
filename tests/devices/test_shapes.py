"""Reductions, movement, TAKE, ASSIGN and what else has a shape, on every device against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernmill.ir import (
    DType,
    Op,
    Ops,
    UOp,
    assign,
    broadcast_to,
    const,
    dtypes,
    elementwise,
    iota,
    pad,
    permute,
    reduce_axes,
    reshape,
    shrink,
    strided,
    take,
    unwindow,
    window,
)
from kernmill.runtime import realize
from tests.devices.arrays import Array, leaf, numpy_dtype, read, wide

I64, F32 = dtypes.int64, dtypes.float32


def numbers(*shape: int) -> Array:
    return np.random.default_rng(math.prod(shape)).integers(-50, 50, shape)


def run(root: UOp) -> Array:
    realize([root])
    return read(root)


def check(root: UOp, want: Array) -> None:
    got, wanted = run(root), np.asarray(want)
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(wide(got), wide(wanted), strict=True)


# --- reductions ------------------------------------------------------------------------------------------------------
FOLDS = {Ops.ADD: np.add, Ops.MUL: np.multiply, Ops.MAX: np.maximum, Ops.MIN: np.minimum, Ops.AND: np.bitwise_and,
         Ops.OR: np.bitwise_or, Ops.XOR: np.bitwise_xor}  # fmt: skip
BITS_ONLY = (Ops.AND, Ops.OR, Ops.XOR)
ROWS = [
    pytest.param(op, d, id=f"{op.name}-{d.name}")
    for op in FOLDS
    for d in dtypes.data
    if not (d.is_float and op in BITS_ONLY)
]


def test_every_reducing_op_is_here() -> None:
    assert {op for op in Ops.rows() if op.is_elementwise and op.associative and op.commutative} == set(FOLDS)


@pytest.mark.parametrize(("op", "dtype"), ROWS)
def test_reduce(op: Op, dtype: DType, device: str) -> None:
    rng = np.random.default_rng(5)
    array = rng.integers(0 if dtype.min == 0 else -3, 4, (5, 23)).astype(numpy_dtype(dtype))
    if op is Ops.MUL and dtype.is_float:
        array = np.where(rng.random((5, 23)) < 0.5, 1, -2).astype(numpy_dtype(dtype))
    x = leaf(array, device)
    roots = [reduce_axes(x, op, axes) for axes in ((0,), (1,), (0, 1))]
    realize(roots)
    for axes, root in zip(((0,), (1,), (0, 1)), roots, strict=True):
        fold = {Ops.ADD: np.logical_or, Ops.MUL: np.logical_and}.get(op, FOLDS[op]) if dtype.is_bool else FOLDS[op]
        exact = array.astype(np.float64) if dtype.is_float else array
        with np.errstate(over="ignore"):
            want = fold.reduce(exact, axis=axes, keepdims=True).astype(array.dtype)
        np.testing.assert_array_equal(wide(run(root)), wide(want), f"over {axes}")


@pytest.mark.parametrize("dtype", [d for d in dtypes.data if d.is_float], ids=str)
@pytest.mark.parametrize("op", [Ops.ADD, Ops.MUL, Ops.MAX, Ops.MIN], ids=str)
def test_reduce_of_nan_and_inf(op: Op, dtype: DType, device: str) -> None:
    """A nan in any lane, in the body and in the tail; inf - inf; the largest of infinities."""
    array = np.ones((6, 37))
    array[0, 3] = np.nan
    array[1, 36] = np.nan
    array[2, [5, 20]] = np.inf
    array[3, [5, 33]] = np.inf, -np.inf
    array[4] = -np.inf
    array[5, 0] = -0.0
    array = array.astype(numpy_dtype(dtype))
    with np.errstate(all="ignore"):
        want = FOLDS[op].reduce(array.astype(np.float64), axis=1, keepdims=True).astype(array.dtype)
        across = FOLDS[op].reduce(array.astype(np.float64), axis=0, keepdims=True).astype(array.dtype)
    np.testing.assert_array_equal(wide(run(reduce_axes(leaf(array, device), op, (1,)))), wide(want))
    np.testing.assert_array_equal(wide(run(reduce_axes(leaf(array, device), op, (0,)))), wide(across))


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 70, 129])
def test_sums_of_every_length(length: int, device: str) -> None:
    array = numbers(3, length).astype(np.float32)
    x = leaf(array, device)
    check(reduce_axes(x, Ops.ADD, (1,)), array.sum(1, keepdims=True))
    check(reduce_axes(permute(x, (1, 0)), Ops.MAX, (0,)), array.T.max(0, keepdims=True))


@pytest.mark.parametrize("op", FOLDS, ids=str)
def test_reduce_of_nothing_is_the_neutral_element(op: Op, device: str) -> None:
    array = np.zeros((3, 0), np.int32)
    want = {Ops.ADD: 0, Ops.OR: 0, Ops.XOR: 0, Ops.MUL: 1, Ops.AND: -1, Ops.MAX: -(2**31), Ops.MIN: 2**31 - 1}[op]
    check(reduce_axes(leaf(array, device), op, (1,)), np.full((3, 1), want, np.int32))


def test_wrap_around_in_a_sum(device: str) -> None:
    array = np.full((2, 40), 100, np.int8)
    check(reduce_axes(leaf(array, device), Ops.ADD, (1,)), np.full((2, 1), 4000 % 256 - 256, np.int8))


# --- movement --------------------------------------------------------------------------------------------------------
def windows(x: Array, axis: int, size: int, stride: int, dilation: int) -> Array:
    view = np.lib.stride_tricks.sliding_window_view(x, dilation * (size - 1) + 1, axis)
    places = [slice(None)] * view.ndim
    places[axis], places[-1] = slice(None, None, stride), slice(None, None, dilation)
    return view[tuple(places)]


MOVES = {
    "reshape": (lambda x: reshape(x, (5, 12)), lambda a: a.reshape(5, 12)),
    "reshape of a permute": (
        lambda x: reshape(permute(x, (2, 0, 1)), (6, 10)), lambda a: a.transpose(2, 0, 1).reshape(6, 10)),
    "expand": (lambda x: broadcast_to(reshape(x, (3, 4, 5, 1)), (3, 4, 5, 3)), lambda a: np.repeat(a[..., None], 3, 3)),
    "permute": (lambda x: permute(x, (1, 2, 0)), lambda a: a.transpose(1, 2, 0)),
    "pad": (lambda x: pad(x, ((1, 0), (0, 2), (3, 1))), lambda a: np.pad(a, ((1, 0), (0, 2), (3, 1)))),
    "shrink": (lambda x: shrink(x, ((1, 3), (0, 4), (2, 5))), lambda a: a[1:3, :, 2:5]),
    "strided": (lambda x: strided(x, (1, 2, -2)), lambda a: a[:, ::2, ::-2]),
    "flipped": (lambda x: strided(x, (-1, -1, -1)), lambda a: a[::-1, ::-1, ::-1]),
    "window": (lambda x: window(x, 1, 2, 1, 2), lambda a: windows(a, 1, 2, 1, 2)),
    "window with a stride": (lambda x: window(x, 2, 3, 2), lambda a: windows(a, 2, 3, 2, 1)),
    "windows side by side": (lambda x: window(x, 1, 2, 2), lambda a: windows(a, 1, 2, 2, 1)),
    "to nothing": (lambda x: shrink(x, ((1, 1), (0, 4), (0, 5))), lambda a: a[1:1]),
    "from nothing": (lambda x: pad(shrink(x, ((1, 1), (0, 4), (0, 5))), ((1, 1), (0, 0), (0, 0))), lambda a: 0 * a[:2]),
    "detach": (lambda x: UOp(Ops.DETACH, x.dtype, (x,)), lambda a: a),
    "contiguous": (lambda x: UOp(Ops.CONTIGUOUS, x.dtype, (permute(x, (2, 1, 0)),)), lambda a: a.T),
    "a long chain": (
        lambda x: strided(pad(reshape(permute(shrink(x, ((0, 2), (1, 4), (0, 5))), (2, 1, 0)), (6, 5)),
                              ((1, 1), (2, 0))), (2, -3)),
        lambda a: np.pad(a[:2, 1:4].transpose(2, 1, 0).reshape(6, 5), ((1, 1), (2, 0)))[::2, ::-3],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVES)
def test_movement(name: str, device: str) -> None:
    array = numbers(3, 4, 5)
    on_tensor, on_array = MOVES[name]
    check(on_tensor(leaf(array, device)) + 1, on_array(array) + 1)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("dtype", dtypes.data, ids=str)
def test_movement_of_every_dtype(dtype: DType, device: str) -> None:
    array = numbers(5, 37).astype(numpy_dtype(dtype))
    root = permute(pad(leaf(array, device), ((1, 0), (0, 2))), (1, 0))
    check(UOp(Ops.CONTIGUOUS, root.dtype, (root,)), np.pad(array, ((1, 0), (0, 2))).T)


@pytest.mark.parametrize("sizes", [(64, 17), (100, 24)], ids=str)
@pytest.mark.parametrize("dtype", [dtypes.uint8, dtypes.float16], ids=str)
def test_narrow_values_are_transposed(dtype: DType, sizes: tuple[int, int], device: str) -> None:
    """OpenCL has no vectors of more than 16 lanes: 16 words of four bytes each were one of 64."""
    array = numbers(*sizes).astype(numpy_dtype(dtype))
    root = permute(leaf(array, device), (1, 0))
    check(UOp(Ops.CONTIGUOUS, root.dtype, (root,)), array.T)


def test_narrow_values_are_turned_into_a_place_of_their_own(device: str) -> None:
    array = numbers(65, 4, 20, 4).astype(np.float16)
    target = leaf(np.zeros((4, 20, 4, 65), np.float16), device)
    check(assign(target, permute(leaf(array, device), (1, 2, 3, 0))), array.transpose(1, 2, 3, 0))


def test_narrow_values_are_added_to_their_transpose(device: str) -> None:
    array = numbers(20, 63, 20).astype(np.uint8)
    x = leaf(array, device)
    root = reshape(x + permute(x, (2, 1, 0)), (1260, 20))
    check(UOp(Ops.CONTIGUOUS, root.dtype, (root,)), (array + array.transpose(2, 1, 0)).reshape(1260, 20))


@pytest.mark.parametrize("sizes", [(2, 1, 1), (3, 2, 1), (2, 3, 1), (3, 1, 2), (2, 2, 2)], ids=str)
def test_unwindow_is_the_adjoint_of_window(sizes: tuple[int, int, int], device: str) -> None:
    size, stride, dilation = sizes
    array = numbers(2, 9)
    view = windows(array, 1, size, stride, dilation)
    want = np.zeros_like(array)
    for o in range(view.shape[1]):
        for k in range(size):
            want[:, o * stride + k * dilation] += view[:, o, k]
    x = leaf(array, device)
    back = unwindow(window(x, 1, size, stride, dilation), 1, 9, stride, dilation)
    check(reduce_axes(back, Ops.ADD, (2,)), want[..., None])


@pytest.mark.parametrize("step", [2, 3, 5, -2, 17])
def test_large_strides(step: int, device: str) -> None:
    """Lanes that are gathered, and pairs of loads with a shuffle for every second element."""
    array = numbers(4, 140).astype(np.float32)
    check(strided(leaf(array, device), (1, step)) * 2.0, array[:, ::step] * np.float32(2))
    for start in (1, 2):
        part = shrink(leaf(array, device), ((0, 4), (start, 139)))
        check(strided(part, (1, step)) + 1.0, array[:, start:139][:, ::step] + np.float32(1))


def test_iota_and_constants(device: str) -> None:
    check(iota(70) * 3 + leaf(np.zeros(70, np.int64), device), np.arange(70) * 3)
    array = np.zeros(40, np.float32)
    check(leaf(array, device) + const(F32, 0.1), array + np.float32(0.1))
    check(leaf(array, device) + const(F32, math.nan), array + np.float32(np.nan))
    check(leaf(array, device) - const(F32, math.inf), array - np.float32(np.inf))


# --- taking and assigning --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("index_shape", [(), (4,), (2, 3), (0,)], ids=str)
def test_take(axis: int, index_shape: tuple[int, ...], device: str) -> None:
    array = numbers(3, 4, 5)
    index = np.random.default_rng(1).integers(0, array.shape[axis], index_shape)
    check(take(leaf(array, device), leaf(np.asarray(index), device), axis), np.take(array, index, axis))


def test_take_outside_reads_the_nearest_entry(device: str) -> None:
    """Whatever memory holds, nothing outside the axis is read; CHECK reports it."""
    array, index = numbers(5), np.array([-1, 0, 4, 5, 2**62, -(2**63)])
    check(take(leaf(array, device), leaf(index, device), 0), array[[0, 0, 4, 4, 4, 0]])


@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.uint8, dtypes.int32, dtypes.uint64], ids=str)
def test_take_with_every_width_of_index(dtype: DType, device: str) -> None:
    array, index = numbers(40), np.arange(39, -1, -1).astype(dtype.name)
    check(take(leaf(array, device), leaf(index, device), 0), array[::-1])


REGIONS = {
    "all": None,
    "a row": ((1, 2, 1), (0, 7, 1)),
    "a column": ((0, 5, 1), (3, 4, 1)),
    "inside": ((1, 4, 1), (2, 6, 1)),
    "every second": ((0, 5, 2), (1, 7, 3)),
    "nothing": ((2, 2, 1), (0, 7, 1)),
}


@pytest.mark.parametrize("name", REGIONS)
def test_assign(name: str, device: str) -> None:
    array, region = numbers(5, 7), REGIONS[name]
    places = tuple(slice(*part) for part in region) if region else (slice(None), slice(None))
    value = numbers(*array[places].shape) + 1000
    want = array.copy()
    want[places] = value
    check(assign(leaf(array, device), leaf(value, device), region), want)
    want[places] = -1
    check(assign(leaf(array, device), const(I64, -1), region), want)


def test_where_with_a_gate_over_places(device: str) -> None:
    array = numbers(4, 21)
    inside = elementwise(Ops.LT, broadcast_to(iota(21), (4, 21)), const(I64, 13))
    check(elementwise(Ops.WHERE, inside, leaf(array, device), const(I64, 7)), np.where(np.arange(21) < 13, array, 7))


def test_divisors_in_idle_lanes_do_not_trap(device: str) -> None:
    """A masked tail holds zeros, and WHERE computes both sides: the divide instruction must survive both."""
    a, b = np.arange(1, 38), np.where(np.arange(37) % 5 == 0, 0, 3)
    x, y = leaf(a, device), leaf(b, device)
    quotient = elementwise(Ops.WHERE, elementwise(Ops.NE, y, const(I64, 0)), x.alu(Ops.CDIV, y), const(I64, -1))
    check(quotient, np.where(b != 0, a // 3, -1))
    least = np.full(9, -(2**63))
    check(leaf(least, device).alu(Ops.CMOD, leaf(np.full(9, -1), device)), np.zeros(9, np.int64))


def test_empty_results_launch_nothing(device: str) -> None:
    array = np.zeros((0, 4), np.float32)
    root = leaf(array, device) + broadcast_to(reshape(leaf(np.ones(4, np.float32), device), (1, 4)), (0, 4))
    check(root, array)


def test_copy_to_another_device(device: str) -> None:
    array = numbers(3, 7)
    other = "PYTHON" if device == "LLVM" else "LLVM"
    moved = UOp(Ops.COPY, I64, (leaf(array, device) * 2,), other)
    root = moved + 1
    check(root, array * 2 + 1)
    assert root.storage.device == other
