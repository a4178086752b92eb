"""The schedule for a matrix unit: every product that is large enough becomes MMAs, in any layout, with any tails."""

from __future__ import annotations

from dataclasses import replace
from itertools import product as every

import pytest

from kernmill.compiler import (
    analyze,
    choose,
    merge_loops,
    show_schedule,
    unit_rows_schedule,
    unit_schedule,
)
from kernmill.ir import Context, DType, Ops, Target, UOp, dtypes, expand, permute, reshape, shrink, window
from tests.compiler.kernels import (
    VECTORS,
    attention,
    close,
    data,
    inputs,
    lowered,
    matmul,
    only,
    run_ast,
    run_on,
    total,
)
from tests.compiler.tiles import BF16, F16, I8, TILES, U8, laid, product

SIZES = [(32, 64, 32), (96, 96, 96), (33, 70, 50), (16, 64, 16), (17, 33, 17), (8, 40, 200), (200, 500, 9)]


def test_the_schedule() -> None:
    assert show_schedule(choose(product((64, 512, 1024)), TILES).actions).splitlines() == [
        "split i1 16",
        "unroll i1 2",
        "split i0 16",
        "split k0 32",
        "split k0.s 2",
        "unroll i0 2",
        "tensorize i0.s i1.s",
        "split i1 16",
        "vectorize i1.s 16",
        "order i1 i1.ss i0 i0.s",
        "stage 2 k0 i1.u k0.s i1.s' k0.s.s",
        "unroll k0.s.s' 2",
        "vectorize i1.s'' 16",
        "stage 1 i0 k0 i0.u i0.s' k0.s k0.s.s",
        "unroll k0.s.s'' 2",
        "vectorize k0.s'' 16",
        "thread i1",
    ]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("turned", list(every((False, True), repeat=2)))
def test_every_layout_becomes_tiles(sizes: tuple[int, int, int], turned: tuple[bool, bool]) -> None:
    uops = lowered(product(sizes, turned=turned), TILES, is_checked=True)
    assert sum(u.op is Ops.MMA for u in uops) in (1, 2, 4)
    assert not any(u.op is Ops.FMA for u in uops)


@pytest.mark.parametrize("pair", [(I8, I8), (I8, U8), (U8, I8), (U8, U8), (F16, F16)])
def test_every_pair_of_types(pair: tuple[DType, DType]) -> None:
    assert any(u.op is Ops.MMA for u in lowered(product((32, 64, 32), pair), TILES, is_checked=True))


@pytest.mark.parametrize("kept", [(dtypes.float32, None), (None, dtypes.float32), (dtypes.float32, dtypes.float16)])
@pytest.mark.parametrize("turned", [(False, False), (True, True)])
def test_operands_are_converted_while_they_are_packed(
    kept: tuple[DType | None, DType | None], turned: tuple[bool, bool]
) -> None:
    """Named regression: a cast in front of a product left it to vectors."""
    uops = lowered(product((33, 70, 50), turned=turned, kept=kept), TILES, is_checked=True)
    assert sum(u.op is Ops.MMA for u in uops) in (2, 4)
    assert sum(u.op is Ops.LOCAL and u.dtype is BF16 for u in uops) == 2
    assert any(u.op is Ops.MMA for u in lowered(product(pair=(I8, U8), kept=(U8, None)), TILES, is_checked=True))


@pytest.mark.parametrize("sizes", [(4, 96, 96), (96, 96, 7), (96, 15, 96)])
def test_blocks_that_would_be_empty_for_the_most_part(sizes: tuple[int, int, int]) -> None:
    assert unit_schedule(analyze(product(sizes), TILES)) is None


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_windows_are_not_for_the_unit(stride: int) -> None:
    """Named regression: a convolution of one channel in bfloat16. The copy of a window has one axis, not two."""
    rows = window(data(0, 95 * stride + 64, dtype=BF16), 0, 64, stride).cast(dtypes.float32)
    columns = data(1, 64, 96, dtype=BF16).cast(dtypes.float32)
    for root in (matmul(rows, columns), matmul(permute(columns, (1, 0)), permute(rows, (1, 0)))):
        assert unit_schedule(analyze(only(root), TILES)) is None
        lowered(only(root), TILES, is_checked=True)


def test_an_operand_without_terms_is_not_for_the_unit() -> None:
    """Named regression: sum over k of a[i] * b[k, j]. There is nothing to pack of a."""
    a = expand(reshape(data(0, 64, dtype=BF16).cast(dtypes.float32), (64, 1, 1)), (64, 64, 96))
    b = expand(reshape(data(1, 64, 96, dtype=BF16).cast(dtypes.float32), (1, 64, 96)), (64, 64, 96))
    ast = only(total(a * b, 1))
    assert unit_schedule(analyze(ast, TILES)) is None
    lowered(ast, TILES, is_checked=True)


def test_few_rows_read_a_large_matrix_in_its_order() -> None:
    assert unit_schedule(analyze(product((32, 2048, 2048)), TILES)) is None
    assert unit_schedule(analyze(product((32, 2048, 2048), turned=(False, True)), TILES)) is not None
    assert unit_schedule(analyze(product((64, 2048, 2048)), TILES)) is not None


@pytest.mark.parametrize("kind", [(BF16, 32, 2), (I8, 64, 4)])
def test_operands_that_lie_in_blocks_are_not_packed(kind: tuple[DType, int, int]) -> None:
    """Only their places say so: each is one loop, and digits of it."""
    ast = merge_loops(laid(96, 128, 64, *kind))
    uops = lowered(ast, TILES, is_checked=True)
    assert sum(u.op is Ops.MMA for u in uops) == 4
    assert {u.arg[0] for u in uops if u.op is Ops.LOCAL} == {"tile0"}
    assert "stage 1" not in show_schedule(choose(ast, TILES).actions)
    assert "stage" in show_schedule(choose(merge_loops(laid(96, 128, 64, kind[0], kind[1], 1)), TILES).actions)
    converted = merge_loops(laid(96, 128, 64, *kind, dtypes.float32 if kind[0] is BF16 else U8))
    assert {u.arg[0] for u in lowered(converted, TILES) if u.op is Ops.LOCAL} == {"tile0", "stage1_0", "stage2_0"}
    if kind[0] is I8:
        assert_right(ast, TILES)
        assert_right(converted, TILES)


def test_rows_that_end_inside_of_a_step_are_packed() -> None:
    """Named regression: 20 of 32 terms that lie like a tile, but for a gate: no MMA was made."""
    a, b = data(0, 64, 32, dtype=BF16), data(1, 20, 64, dtype=BF16)
    ast = merge_loops(only(matmul(shrink(a, ((0, 64), (0, 20))).cast(dtypes.float32), b.cast(dtypes.float32))))
    assert any(u.op is Ops.MMA for u in lowered(ast, TILES, is_checked=True))


def assert_right(ast: UOp, target: Target) -> None:
    """With the schedule for a target, on a CPU where functions stand for the unit."""
    arrays = inputs(ast)
    with Context(TARGET="amx"):
        got = run_on("LLVM", ast, arrays, choose(ast, target).actions)
    close(got, run_ast(ast, arrays))


def test_a_long_sum_goes_on_in_the_output() -> None:
    """Where panels of all of its terms are more than half of L2, and no rows have to be packed again."""
    small = replace(TILES, l2_bytes=1 << 14)
    chosen = show_schedule(choose(merge_loops(laid(64, 256, 64)), small).actions).splitlines()
    assert chosen[0] == "accumulate k0 64"
    assert next(line for line in chosen if line.startswith("order")) == "order i1 k0 i0 i0.s"
    assert "accumulate" not in show_schedule(choose(product((64, 256, 64)), small).actions)
    large = replace(TILES, l2_bytes=1 << 16)
    assert "accumulate k0 192" in show_schedule(choose(merge_loops(laid(64, 384, 64)), large).actions)
    assert "accumulate" not in show_schedule(choose(merge_loops(laid(64, 352, 64)), large).actions), "11 steps"
    uops = lowered(merge_loops(laid(64, 256, 64)), small, is_checked=True)
    assert sum(u.op is Ops.MMA for u in uops) == 4
    assert_right(merge_loops(laid(64, 512, 96, I8, 64, 4)), small)


def test_panels_beside_each_other_leave_no_remainder() -> None:
    """Named regression: 17 panels, of which 16 would fill half of L2, were walked as 32."""
    target = replace(TILES, l2_bytes=2 << 20)
    chosen = show_schedule(choose(merge_loops(laid(1024, 1024, 4864)), target).actions)
    assert "split i1 17" in chosen
    assert "split i1.ss 9" in chosen
    chosen = show_schedule(choose(merge_loops(laid(512, 1024, 4864)), target).actions)
    assert "split i1.ss" not in chosen, "rows that L2 holds beside a panel need no others"


def rows_of(tokens: int, width: int, dtype: DType, keys: int = 256) -> UOp:
    q, k, v = (data(slot, n, width, dtype=dtype) for slot, n in ((0, tokens), (1, keys), (2, keys)))
    return only(attention(q, k, v))


@pytest.mark.parametrize("tokens", [256, 263, 272, 278])
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_products_of_kept_rows(tokens: int, dtype: DType) -> None:
    """Four keys with four queries, four columns with four queries; the kept row is an operand as it lies."""
    uops = lowered(merge_loops(rows_of(tokens, 64, dtype)), TILES, is_checked=True)
    assert sum(u.op is Ops.MMA for u in uops) == 8
    assert sum(u.op is Ops.LOCAL and u.dtype is dtype for u in uops) == 4  # keys, queries, values, and the row


@pytest.mark.parametrize(
    ("width", "keys", "dtype"), [(24, 128, BF16), (32, 128, BF16), (64, 264, BF16), (64, 256, dtypes.float32)]
)
def test_blocks_that_are_not_whole_are_no_operands(width: int, keys: int, dtype: DType) -> None:
    ast = merge_loops(rows_of(264, width, dtype, keys))
    assert unit_rows_schedule(analyze(ast, TILES)) is None
    assert all(u.op is not Ops.MMA for u in lowered(ast, TILES, is_checked=True))


def test_targets_and_types_without_it() -> None:
    assert unit_schedule(analyze(product(), VECTORS)) is None
    assert unit_schedule(analyze(product(pair=(BF16, F16)), TILES)) is None
