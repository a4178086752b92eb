"""Lanes that lie apart: blocks are transposed, interleaved ones are picked from, in registers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernmill.compiler import parse_schedule
from kernmill.ir import (
    DType,
    Ops,
    UOp,
    broadcast_to,
    const,
    dtypes,
    elementwise,
    iota,
    permute,
    reshape,
    strided,
    window,
)
from tests.compiler.kernels import VECTORS, Array, data, inputs, matmul, only, run_ast, run_on, total
from tests.compiler.passes import after


def nodes(ast: UOp, op: object) -> list[UOp]:
    return [node for node in ast.toposort() if node.op is op]


def apart(ast: UOp) -> int:
    """Gathers and scatters."""
    return sum(node.src[0].src[1].dtype.lanes > 1 for node in [*nodes(ast, Ops.LOAD), *nodes(ast, Ops.STORE)])


def transposed(rows: int, columns: int, dtype: DType = dtypes.float32) -> UOp:
    return only(elementwise(Ops.ADD, permute(data(0, rows, columns, dtype=dtype), (1, 0)), const(dtype, 1)))


def same(ast: UOp, schedule: str) -> None:
    arrays = inputs(ast)
    arrays[1:] = [
        np.random.default_rng(n).integers(-100, 100, a.size).astype(a.dtype) for n, a in enumerate(arrays[1:])
    ]
    got = run_on("LLVM", ast, arrays, parse_schedule(schedule))
    want: Array = run_ast(ast, arrays)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("rows", [4, 8, 16])
def test_a_transposed_block_is_loaded_by_rows(lanes: int, rows: int) -> None:
    ast = after(
        "shuffle_lanes", only(permute(data(0, 64, 64), (1, 0)) + 1.0), f"vectorize i1 {lanes}; unroll i0 {rows}"
    )
    assert not apart(ast)
    side = min(lanes, rows)
    loads = nodes(ast, Ops.LOAD)
    assert {load.dtype.lanes for load in loads} == {side}
    assert len(loads) == lanes * rows // side


def test_bools_are_turned_as_bytes() -> None:
    seen = permute(data(0, 48, 64, dtype=dtypes.bool), (1, 0))
    ast = only(elementwise(Ops.WHERE, seen, data(1, 64, 48), const(dtypes.float32, -1.0)))
    schedule = "vectorize i0 16; unroll i1 8"
    assert all(load.src[0].src[1].dtype.lanes == 1 for load in nodes(after("shuffle_lanes", ast, schedule), Ops.LOAD))
    arrays = inputs(ast)
    arrays[1] = np.random.default_rng(0).random(arrays[1].size) < 0.5
    np.testing.assert_array_equal(run_on("LLVM", ast, arrays, parse_schedule(schedule)), run_ast(ast, arrays))


@pytest.mark.parametrize(
    ("step", "rows", "schedule"),
    [(-1, 5, "vectorize i1 16; unroll i1 4"), (-3, 1, "vectorize i0 16"), (2, 5, "vectorize i1 8; unroll i1 3")],
)
def test_bools_are_picked_as_bytes(step: int, rows: int, schedule: str) -> None:
    """Gathers of bools took 9 times as long as PyTorch's `flip` of 1000 x 1000."""
    seen = strided(data(0, rows, 211, dtype=dtypes.bool), [1, step])
    ast = only(elementwise(Ops.XOR, seen, const(dtypes.bool, True)))
    assert not apart(after("shuffle_lanes", ast, schedule))
    arrays = inputs(ast)
    arrays[1] = np.random.default_rng(0).random(arrays[1].size) < 0.5
    np.testing.assert_array_equal(run_on("LLVM", ast, arrays, parse_schedule(schedule)), run_ast(ast, arrays))


def side_by_side(count: int, dtype: DType) -> UOp:
    """out[n, m] = entry n of buffer m."""
    place = broadcast_to(reshape(iota(count), (1, count)), (93, count))
    value = const(dtype, 0)
    for number in range(count):
        part = broadcast_to(reshape(data(number, 93, dtype=dtype), (93, 1)), (93, count))
        value = elementwise(Ops.WHERE, elementwise(Ops.EQ, place, const(place.dtype, number)), part, value)
    return only(value)


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("dtype", [dtypes.bool, dtypes.uint8, dtypes.int16, dtypes.float32], ids=str)
def test_what_is_woven_into_each_other_is_stored_whole(dtype: DType, count: int) -> None:
    """Scatters of three bytes took 10 times as long, as did those of any bools."""
    ast, schedule = side_by_side(count, dtype), f"vectorize i0 16; unroll i1 {count}"
    assert not apart(after("shuffle_lanes", ast, schedule))
    arrays = inputs(ast)
    for n, array in enumerate(arrays[1:], 1):
        arrays[n] = np.random.default_rng(n).integers(0, 2 if dtype.is_bool else 99, array.size).astype(array.dtype)
    np.testing.assert_array_equal(run_on("LLVM", ast, arrays, parse_schedule(schedule)), run_ast(ast, arrays))


@pytest.mark.parametrize("schedule", ["vectorize i1 16; unroll i0 16", "vectorize i0 16; unroll i1 16"])
@pytest.mark.parametrize("dtype", [dtypes.uint8, dtypes.float16], ids=str)
def test_no_vector_is_wider_than_the_language_has_them(dtype: DType, schedule: str) -> None:
    narrow = replace(VECTORS, most_lanes=16)
    kernel = only(elementwise(Ops.MAX, permute(data(0, 64, 64, dtype=dtype), (1, 0)), const(dtype, 1)))
    ast = after("shuffle_lanes", kernel, schedule, narrow)
    assert not apart(ast)
    assert max(node.dtype.lanes for node in ast.toposort()) == 16


def test_a_square_takes_log_n_steps() -> None:
    ast = after("shuffle_lanes", only(permute(data(0, 64, 64), (1, 0)) + 1.0), "vectorize i1 16; unroll i0 16")
    assert len(nodes(ast, Ops.SHUFFLE)) == 4 * 16


def test_a_scattered_block_is_stored_by_rows() -> None:
    ast = after("shuffle_lanes", only(permute(data(0, 64, 64), (1, 0)) + 1.0), "vectorize i0 16; unroll i1 8")
    assert not apart(ast)
    assert {store.src[1].dtype.lanes for store in nodes(ast, Ops.STORE)} == {8}


def test_few_rows_stay_gathers() -> None:
    ast = after("shuffle_lanes", only(permute(data(0, 64, 64), (1, 0)) + 1.0), "vectorize i1 16; unroll i0 2")
    assert apart(ast) == 2


def test_every_second_is_picked_from_two_loads() -> None:
    ast = after("shuffle_lanes", only(strided(data(0, 6, 32), (1, 2)) + 1.0), "vectorize i0 16")
    assert [load.dtype.lanes for load in nodes(ast, Ops.LOAD)] == [16, 16]
    (shuffle,) = nodes(ast, Ops.SHUFFLE)
    assert shuffle.arg == tuple(range(0, 32, 2))


def test_taps_of_a_window_share_loads() -> None:
    """Three taps, two places apart, on lanes two places apart: one stretch of memory for all."""
    ast = after("shuffle_lanes", only(total(window(data(0, 4, 259), 1, 5, 2), 2)), "vectorize i1 16; unroll k0 5")
    assert not apart(ast)
    assert len(nodes(ast, Ops.LOAD)) == 3


def test_what_may_lie_behind_the_end_is_masked() -> None:
    ast = after("shuffle_lanes", only(strided(data(0, 1, 31), (1, 2)) + 1.0), "vectorize i0 16")
    assert any(len(node.src) > 2 for node in nodes(ast, Ops.INDEX))
    inside = after("shuffle_lanes", only(strided(data(0, 1, 32), (1, 2)) + 1.0), "vectorize i0 16")
    assert all(len(node.src) == 2 for node in nodes(inside, Ops.INDEX))


CASES = {
    "square": (transposed(64, 64), "vectorize i1 16; unroll i0 16"),
    "wide": (transposed(64, 64), "vectorize i1 8; unroll i0 32"),
    "narrow": (transposed(64, 64), "vectorize i1 16; unroll i0 4"),
    "blocked": (transposed(64, 64), "vectorize i1 16; unroll i0 16; split i1 2; order i1 i0 i1.s"),
    "scattered": (transposed(64, 64), "vectorize i0 16; unroll i1 16"),
    "scattered_narrow": (transposed(64, 64), "vectorize i0 16; unroll i1 4"),
    "scattered_wide": (transposed(64, 64), "vectorize i0 4; unroll i1 16"),
    "tails": (transposed(37, 53), "vectorize i1 16; unroll i0 8"),
    "tails_of_lanes": (transposed(37, 48), "vectorize i1 16; unroll i0 16"),
    "tails_of_rows": (transposed(48, 37), "vectorize i1 16; unroll i0 16"),
    "tails_scattered": (transposed(37, 48), "vectorize i0 16; unroll i1 8"),
    "bytes": (transposed(64, 64, dtypes.int8), "vectorize i1 16; unroll i0 16"),
    "halves": (transposed(64, 48, dtypes.uint16), "vectorize i1 16; unroll i0 2"),
    "doubles": (transposed(32, 32, dtypes.int64), "vectorize i1 8; unroll i0 8"),
    "colors": (only(permute(data(0, 64, 3), (1, 0)) + 1.0), "vectorize i1 16; unroll i0 3"),
    "colors_back": (only(permute(data(0, 3, 64), (1, 0)) + 1.0), "vectorize i0 16; unroll i1 3"),
    "one_color": (only(permute(data(0, 64, 3), (1, 0)) + 1.0), "vectorize i1 16"),
    "four": (only(permute(data(0, 64, 4), (1, 0)) + 1.0), "vectorize i1 16; unroll i0 4"),
    "four_back": (only(permute(data(0, 4, 64), (1, 0)) + 1.0), "vectorize i0 16; unroll i1 4"),
    "two_back_tails": (only(permute(data(0, 2, 37), (1, 0)) + 1.0), "vectorize i0 16; unroll i1 2"),
    "every_second": (only(strided(data(0, 6, 38), (1, 2)) + 1.0), "vectorize i0 16"),
    "every_third": (only(strided(data(0, 50), (3,)) + 1.0), "vectorize i0 8"),
    "backwards": (only(strided(data(0, 6, 32), (1, -1)) + 1.0), "vectorize i1 16"),
    "backwards_tails": (only(strided(data(0, 6, 37), (1, -1)) + 1.0), "vectorize i1 16"),
    "windows": (only(total(window(data(0, 4, 70), 1, 5, 2), 2)), "vectorize i1 16; unroll k0 5"),
    "product_by_rows": (only(matmul(data(0, 32, 64), permute(data(1, 48, 64), (1, 0)))),
                        "vectorize i1 16; unroll i0 4; unroll k0 4; order i1 i0; stage 2 k0 k0.u i1.v"),
    "product_by_columns": (only(matmul(permute(data(0, 64, 32), (1, 0)), data(1, 64, 48))),
                           "vectorize i0 16; unroll i1 8; unroll k0 2"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values_stay(name: str) -> None:
    same(*CASES[name])


def test_packing_four_by_four_is_undone_by_one_shuffle() -> None:
    """Four rows woven into a panel, and each of them picked out again."""
    product = matmul(
        data(0, 32, 64, dtype=dtypes.int8).cast(dtypes.int32), data(1, 64, 64, dtype=dtypes.int8).cast(dtypes.int32)
    )
    schedule = "vectorize i1 16; unroll i0 2; unroll k0 4; order i1 i0; stage 2 k0 i1.v k0.u"
    ast = after("shuffle_lanes", only(product), schedule)
    assert not apart(ast)
    assert sorted(load.dtype.lanes for load in nodes(ast, Ops.LOAD) if load.dtype.lanes > 1) == [16, 16, 16, 16, 64]
    same(only(product), schedule)


def test_bytes_of_words_are_changed_where_they_lie() -> None:
    """Codes that are unpacked into a panel were picked apart into four vectors and woven again, 24 shuffles a word."""
    codes = elementwise(Ops.XOR, data(0, 16, 16, 4, dtype=dtypes.uint8), const(dtypes.uint8, 128))
    ast = only(codes)
    schedule = "unroll i0 4; vectorize i0 16"
    (store,) = nodes(after("shuffle_lanes", ast, schedule, VECTORS), Ops.STORE)
    assert store.src[1].op is Ops.XOR
    assert store.src[1].src[0].op is Ops.LOAD
    same(ast, schedule)


def test_lanes_that_share_a_place_keep_gates_of_their_own() -> None:
    """The gradient of a strided convolution: every second lane is closed, and its neighbour reads the same place."""
    import numpy as np

    from kernmill import Tensor

    rng = np.random.default_rng(0)
    x, w = (Tensor(rng.standard_normal(s, np.float32), device="LLVM", requires_grad=True)
            for s in ((2, 8, 12, 12), (32, 8, 3, 3)))  # fmt: skip
    y = x.conv2d(w, stride=2, padding=1)
    y.square().sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose((x.grad.numpy() * x.numpy()).sum(), 2 * (y.numpy() ** 2).sum(), rtol=1e-4)
