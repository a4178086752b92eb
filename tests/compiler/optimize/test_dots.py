"""Schedules of sums of products of bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernmill.compiler import Action, analyze, dot_schedule, merge_loops, show_schedule
from kernmill.ir import DType, Ops, Target, UOp, dtypes, permute, window
from tests.compiler.kernels import VECTORS, data, inputs, lowered, matmul, only, run_ast, run_on
from tests.compiler.tiles import laid
from tests.compiler.tiles import product as converted

I8, U8 = dtypes.int8, dtypes.uint8
VNNI = replace(VECTORS, dots=frozenset({(U8, I8)}))


def product(rows: int, inner: int, columns: int, pair: tuple[DType, DType] = (I8, I8), turned: bool = False) -> UOp:
    right = data(1, columns, inner, dtype=pair[1]) if turned else data(1, inner, columns, dtype=pair[1])
    right = permute(right, (1, 0)) if turned else right
    left = data(0, rows, inner, dtype=pair[0])
    return merge_loops(only(matmul(left.cast(dtypes.int32), right.cast(dtypes.int32))))


def dot_actions(ast: UOp, target: Target) -> list[Action] | None:
    schedule = dot_schedule(analyze(ast, target))
    return None if schedule is None else schedule.actions


def schedule(ast: UOp) -> str:
    actions = dot_actions(ast, VNNI)
    assert actions is not None
    return show_schedule(actions).replace("\n", "; ")


def test_operands_in_blocks_are_for_a_matrix_unit() -> None:
    """They are packed by steps of loops here, and digits of loops have none."""
    ast = merge_loops(laid(96, 128, 64, I8, 64, 4))
    assert dot_actions(ast, VNNI) is None
    lowered(ast, VNNI, is_checked=True)


def test_panels_are_woven() -> None:
    assert schedule(product(512, 512, 512, (U8, I8))) == (
        "split i1 64; unroll k0 4; stage 2 k0 i1.s k0.u; vectorize i1.s' 64; vectorize i1.s 16; unroll i1.s 4; "
        "unroll i0 6; order i1 i0; prefetchw"
    )


def test_panels_of_one_sign_are_moved() -> None:
    assert schedule(product(512, 512, 512)).startswith("bias 2 i0; unroll k0' 4; vectorize k0' 16; split i1 64;")
    assert "bias" not in schedule(product(512, 512, 512, (I8, U8)))
    assert "bias" not in schedule(product(8, 512, 512))


@pytest.mark.parametrize("turned", [False, True])
def test_a_matrix_by_itself_is_moved_on_one_side(turned: bool) -> None:
    """Once no schedule fitted, and the kernel was plain loops: one buffer holds both factors."""
    one = data(0, 40, 40, dtype=I8).cast(dtypes.int32)
    ast = merge_loops(only(matmul(one, permute(one, (1, 0)) if turned else one)))
    arrays = inputs(ast)
    arrays[1] = np.random.default_rng(0).integers(-128, 128, arrays[1].size).astype(np.int8)
    actions = dot_actions(ast, VNNI)
    assert actions is not None
    assert actions[0] == Action("bias", ("1", "i0"))
    np.testing.assert_array_equal(run_on("LLVM", ast, arrays, actions), run_ast(ast, arrays))


def test_tiles_of_rows_go_by_several_panels_that_l1_does_not_hold() -> None:
    """So many as half of L2 holds, and threads find four blocks of them."""
    found = {n: schedule(product(n, n, n)) for n in (512, 1024, 2048, 8192)}
    assert [n for n, text in found.items() if "i1.ss" in text] == [1024, 2048]
    assert "split i1 64; split i1 4; unroll k0 4; stage 2 i1.ss k0 i1.s k0.u;" in found[2048]
    assert "order i1 i0 i1.ss" in found[2048]


def test_panels_that_are_no_power_of_two_wide() -> None:
    assert "vectorize i1' 16; vectorize i1 16; unroll i1 3" in schedule(product(100, 64, 48, (U8, I8)))


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_rows_that_are_windows_are_read_as_they_lie(stride: int) -> None:
    """Named regression: the copy of a window has one axis, which was cut by the name of another."""
    left = window(data(0, 251 * stride + 128, dtype=I8), 0, 128, stride).cast(dtypes.int32)
    ast = merge_loops(only(matmul(left, data(1, 128, 256, dtype=I8).cast(dtypes.int32))))
    assert "stage 1" not in schedule(ast)
    lowered(ast, VNNI, is_checked=True)


def test_few_rows_are_not_worth_a_panel() -> None:
    assert "stage" not in schedule(product(8, 512, 512))


def test_a_vector_takes_its_lanes_from_the_sum() -> None:
    assert schedule(product(1, 512, 512, turned=True)) == "unroll k0 4; vectorize k0 16"


@pytest.mark.parametrize("target", [VECTORS, replace(VNNI, vector_bytes=0, dots=frozenset())])
def test_only_where_the_target_has_it(target: object) -> None:
    assert dot_actions(product(64, 64, 64), target) is None  # type: ignore[arg-type]


def test_other_kernels_are_not_its_business() -> None:
    floats = merge_loops(only(matmul(data(0, 64, 64), data(1, 64, 64))))
    assert dot_actions(floats, VNNI) is None
    assert dot_actions(merge_loops(only(data(0, 64) + 1.0)), VNNI) is None


@pytest.mark.parametrize("pair", [(I8, I8), (U8, I8), (U8, U8)])
@pytest.mark.parametrize(
    "shape",
    [(24, 64, 64), (50, 128, 70), (3, 64, 20), (1, 256, 33), (25, 30, 17), (64, 8, 4), (100, 128, 300), (32, 37, 48)],
)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("l2_bytes", [1 << 20, 8 << 10])
def test_values_are_exact(shape: tuple[int, int, int], pair: tuple[DType, DType], turned: bool, l2_bytes: int) -> None:
    ast = product(*shape, pair, turned)
    arrays = inputs(ast)
    for number, array in enumerate(arrays[1:], 1):
        limits = np.iinfo(array.dtype)
        arrays[number] = (
            np.random.default_rng(number).integers(limits.min, limits.max + 1, array.size).astype(array.dtype)
        )
    actions = dot_actions(ast, replace(VNNI, l2_bytes=l2_bytes))
    assert actions is not None or min(shape) < 2 or shape[1] == 8
    np.testing.assert_array_equal(run_on("LLVM", ast, arrays, actions), run_ast(ast, arrays))


def test_the_dot_is_there() -> None:
    for shape in ((512, 512, 512), (8, 512, 512)):
        uops = lowered(product(*shape), VNNI, dot_actions(product(*shape), VNNI), is_checked=True)
        assert any(u.op is Ops.DOT for u in uops)
        assert not any(u.op is Ops.MUL and u.dtype.scalar is dtypes.int32 for u in uops)


@pytest.mark.parametrize(("rows", "columns"), [(24, 512), (41, 500), (27, 1000)])
def test_values_of_several_panels_beside_each_other_are_exact(rows: int, columns: int) -> None:
    """Also where the last panel is not full."""
    ast = product(rows, 601, columns)
    arrays = inputs(ast)
    actions = dot_actions(ast, VNNI)
    assert actions is not None
    assert "i1.ss" in show_schedule(actions)
    expected = arrays[1].reshape(rows, 601).astype(np.int32) @ arrays[2].reshape(601, columns).astype(np.int32)
    np.testing.assert_array_equal(np.ravel(run_on("LLVM", ast, arrays, actions)), np.ravel(expected))


@pytest.mark.parametrize("kept", [(None, dtypes.float32), (dtypes.int32, None), (U8, U8)])
def test_bytes_that_are_converted_are_not_for_dots(kept: tuple[DType | None, DType | None]) -> None:
    ast = merge_loops(converted((32, 16, 100), (I8, I8), kept=kept))
    assert dot_actions(ast, VNNI) is None
    lowered(ast, VNNI)


# --- pairs of bfloat16
BF16, F32 = dtypes.bfloat16, dtypes.float32
PAIRS = replace(VECTORS, dots=frozenset({(BF16, BF16)}))


def pairs(
    rows: int, inner: int, columns: int, turned: tuple[bool, bool] = (False, False), kept: DType | None = None
) -> UOp:
    return merge_loops(converted((rows, inner, columns), (BF16, BF16), turned, (kept, None)))


def pair_schedule(ast: UOp, target: Target = PAIRS) -> str | None:
    actions = dot_actions(ast, target)
    return None if actions is None else show_schedule(actions).replace("\n", "; ")


def test_panels_of_pairs_are_woven() -> None:
    assert pair_schedule(pairs(512, 512, 512)) == (
        "split i1 64; split i1 2; unroll k0 2; stage 2 i1.ss k0 i1.s k0.u; unroll k0.u' 2; vectorize i1.s' 32; "
        "vectorize i1.s 16; unroll i1.s 4; unroll i0 6; order i1 i0 i1.ss; prefetchw"
    )


def test_panels_of_a_transposed_matrix_turn_as_words() -> None:
    found = pair_schedule(pairs(512, 512, 512, (False, True)))
    assert found is not None
    assert "stage 2 i1.ss k0 i1.s k0.u; unroll k0' 16; vectorize i1.s' 16" in found
    assert "unroll k0' 8" in (pair_schedule(pairs(512, 528, 512, (False, True))) or "")


def test_rows_whose_terms_lie_apart_are_packed() -> None:
    """The gradient of a weight."""
    found = pair_schedule(pairs(512, 512, 512, (True, False)))
    assert found is not None
    assert "stage 1 i0.s k0 i0.u k0.u; unroll k0.u'' 2; vectorize i0.u'' 4" in found
    assert pair_schedule(pairs(8, 512, 512, (True, False))) is None


def test_few_rows() -> None:
    """By a matrix as it lies they are a tile; by a transposed one the terms are lanes, if they fill vectors."""
    assert pair_schedule(pairs(8, 512, 512)) == "unroll k0 2; vectorize i1 16; unroll i1 4; unroll i0 4"
    along = "unroll k0 2; vectorize k0 16; unroll i1 4; unroll i0 4; order i1 i0"
    assert pair_schedule(pairs(8, 512, 512, (False, True))) == along
    assert pair_schedule(pairs(8, 500, 512, (False, True))) is None
    assert pair_schedule(pairs(8, 64, 512, (False, True))) is None
    assert pair_schedule(pairs(1, 512, 512, (False, True))) == along.replace(
        "unroll i1 4; unroll i0 4; order i1 i0", "unroll i0 4; order i0"
    )


def test_what_few_rows_read_from_memory_stays_as_it_is() -> None:
    """Such a product waits for the matrix."""
    assert pair_schedule(pairs(1, 4096, 4096)) is None
    assert pair_schedule(pairs(8, 4096, 4096)) is None
    assert pair_schedule(pairs(4, 4096, 4096, (False, True))) is None
    assert "stage 2" in (pair_schedule(pairs(12, 4096, 4096)) or "")
    assert "prefetch 4096" in (pair_schedule(pairs(8, 4096, 4096, (False, True))) or "")


def test_only_pairs_and_where_the_target_has_them() -> None:
    assert pair_schedule(pairs(64, 63, 64)) is None
    assert pair_schedule(pairs(64, 64, 64), VNNI) is None
    assert pair_schedule(pairs(64, 64, 64, kept=F32)) is None
    assert pair_schedule(product(64, 64, 64), PAIRS) is None


@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("shape", [(512, 512, 512), (96, 130, 70), (40, 66, 33), (16, 512, 1000)])
def test_pairs_become_dots(shape: tuple[int, int, int], turned: tuple[bool, bool]) -> None:
    for l2_bytes in (1 << 20, 8 << 10):
        target = replace(PAIRS, l2_bytes=l2_bytes)
        ast = pairs(*shape, turned)
        uops = lowered(ast, target, dot_actions(ast, target), is_checked=True)
        assert any(u.op is Ops.DOT for u in uops)
        assert not any(u.op is Ops.FMA for u in uops)
