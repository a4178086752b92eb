"""Panels: what is packed, over which loops, and that every choice can be lowered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernmill.compiler import Schedule, analyze, choose, in_blocks, merge_loops, show_schedule
from kernmill.ir import Ops, Target, UOp, dtypes, elementwise, permute, reduce_axes, reshape, window
from tests.compiler.kernels import VECTORS, close, data, inputs, lowered, matmul, only, run_ast, run_on, total

NO_MASKS = replace(VECTORS, name="sse", vector_bytes=16, vector_registers=16, has_masks=False)
NARROW = replace(VECTORS, name="avx2", vector_bytes=32, vector_registers=16)


def packed(root: UOp, target: Target = VECTORS) -> list[tuple[str, ...]]:
    """The arguments of every `stage`."""
    return [action.args for action in choose(merge_loops(only(root)), target).actions if action.verb == "stage"]


def test_a_small_operand_is_read_as_it_lies() -> None:
    assert not packed(matmul(data(0, 64, 64), data(1, 64, 64)))


def test_a_large_operand_is_packed_for_its_rows() -> None:
    assert packed(matmul(data(0, 1024, 1024), data(1, 1024, 1024))) == [("2", "k0", "k0.u", "i1.u", "i1.v")]


@pytest.mark.parametrize(("inner", "columns", "asked"), [(256, 50176, True), (256, 3136, False), (4096, 50176, False)])
def test_the_next_panel_is_asked_for_in_memory_that_no_cache_holds(inner: int, columns: int, asked: bool) -> None:
    """A small operand stays in a cache, and behind a panel of many terms there is no room for another."""
    root = matmul(data(0, 256, inner), data(1, inner, columns))
    found = show_schedule(choose(merge_loops(only(root)), VECTORS).actions).replace("\n", "; ")
    panel = found.partition("unroll i1 ")[2].partition(";")[0]  # vectors, of 64 bytes each
    assert found.count(f"prefetch {64 * int(panel)} k0'") == found.count("prefetch ") == asked


@pytest.mark.parametrize(("rows", "inner", "columns", "asked"), [
    (50176, 256, 64, "prefetchw; prefetch 6144 k0"), (50176, 1024, 64, "prefetch 24576 k0"),
    (50176, 256, 120, "prefetchw"),
    (512, 256, 64, ""), (1024, 512, 1024, "prefetchw"), (1024, 1024, 1024, ""),
])  # fmt: skip
def test_tiles_ask_for_what_comes_from_far(rows: int, inner: int, columns: int, asked: str) -> None:
    """Rows that are read once from memory, and results that leave L2; a long sum hides its stores by itself."""
    found = choose(merge_loops(only(matmul(data(0, rows, inner), data(1, inner, columns)))), VECTORS).actions
    assert "; ".join(str(action) for action in found if action.verb in ("prefetchw", "prefetch")) == asked


@pytest.mark.parametrize(
    ("rows", "inner", "is_packed"), [(3, 64, False), (8, 33, True), (12, 64, True), (17, 16, True), (100, 5, True)]
)
def test_a_transposed_operand_is_packed_for_one_tile_of_rows_and_for_few_terms(
    rows: int, inner: int, is_packed: bool
) -> None:
    """Each tile gathered it: 16 x 64 by 1024 keys took six times as long, 128 x 16 by 1000 rows thirteen times."""
    root = matmul(data(0, rows, inner), permute(data(1, 1000, inner), (1, 0)))
    assert [args[0] for args in packed(root)] == ["2"] * is_packed
    ast = merge_loops(only(root))
    arrays = inputs(ast)
    close(run_on("LLVM", ast, arrays, choose(ast, VECTORS).actions), run_on("LLVM", ast, arrays, []))


@pytest.mark.parametrize("target", [VECTORS, NARROW], ids=lambda t: str(getattr(t, "name", t)))
def test_a_tile_over_several_heads_has_one_panel(target: Target) -> None:
    """Results lie head by head, each as wide as a vector: once each tile gathered its columns anew, and a projection
    took three times as long."""
    lanes = target.vector_bytes // 4
    x, weight = data(0, 2, 1, 33, 1, 64), data(1, 1, 14, 1, lanes, 64)
    ast = merge_loops(only(reduce_axes(elementwise(Ops.MUL, x, weight), Ops.ADD, (4,))))
    actions, arrays = choose(ast, target).actions, inputs(ast)
    found = "; ".join(map(str, actions))
    assert "unroll i1 2" in found
    assert f"stage 2 k0{' k0.u' * (target is VECTORS)} i1.u i3.v" in found
    close(run_on("LLVM", ast, arrays, actions), run_ast(ast, arrays))


@pytest.mark.parametrize(("columns", "inner", "order"), [
    (256, 256, "order i1 i0; prefetch 16384 i1; thread i1"),  # 256 KB, of 1 MB
    (128, 256, "order i0 i1; prefetch 8192 i1; thread i0"),  # the larger operand is read once
    (384, 384, "stage 2"), (500, 128, "stage 2"),  # more than half of L2; rows that are no whole lines
])  # fmt: skip
def test_what_l2_holds_is_read_as_it_lies(columns: int, inner: int, order: str) -> None:
    """A copy of a panel is read from L2 as well, and 22 tiles of rows did not pay for it: a tenth of the time."""
    ast = merge_loops(only(matmul(data(0, 250, inner), data(1, inner, columns))))
    actions = choose(ast, VECTORS).actions
    found = "; ".join(map(str, actions))
    assert order in found
    assert ("stage" in found) == order.startswith("stage")
    close(run_on("LLVM", ast, inputs(ast), actions), run_on("LLVM", ast, inputs(ast), []))


@pytest.mark.parametrize(("target", "count"), [(VECTORS, 1), (NARROW, 2)], ids=lambda t: str(getattr(t, "name", t)))
def test_dear_rows_beside_it_are_packed_tile_by_tile(target: Target, count: int) -> None:
    """Packed whole they were packed anew for each block of panels. A tile of four rows wants too many lines from L2."""
    ast = merge_loops(only(matmul(permute(data(0, 128, 500), (1, 0)), data(1, 128, 528))))
    actions = choose(ast, target).actions
    found = "; ".join(map(str, actions))
    assert found.count("stage") == count
    assert ("order i0 i1; prefetch 33792 i1; stage 1 k0 k0.u i0.u" in found) == (count == 1)
    close(run_on("LLVM", ast, inputs(ast), actions), run_on("LLVM", ast, inputs(ast), []))


def test_rows_that_lie_apart_are_packed_once_for_a_block_of_panels() -> None:
    root = matmul(permute(data(0, 1024, 1024), (1, 0)), data(1, 1024, 1024))
    found = show_schedule(choose(merge_loops(only(root)), VECTORS).actions).replace("\n", "; ")
    assert "split i1 8; order i1 i1.s i0;" in found
    assert "stage 1 i0 k0 k0.u i0.u; vectorize i0.u'' 8" in found


@pytest.mark.parametrize(("inner", "turned", "asked"), [(256, False, True), (256, True, True), (260, False, False)])
def test_rows_that_a_batch_shares_are_packed_once(inner: int, turned: bool, asked: bool) -> None:
    """A weight of 1 x 1, and of its gradient: rows 1 KB apart fill few places of a cache. No block of rows or panels is
    cut, for each of which they would be packed anew."""
    weight = permute(data(0, inner, 64), (1, 0)) if turned else data(0, 64, inner)
    image = permute(data(1, 3, inner, 784), (0, 2, 1))
    ast = merge_loops(only(total(elementwise(Ops.MUL, reshape(weight, (1, 64, 1, inner)),
                                             reshape(image, (3, 1, 784, inner))), 3)))  # fmt: skip
    actions = choose(ast, VECTORS).actions
    assert [action.args[0] for action in actions if action.verb == "stage"] == ["2", "1"][: 1 + asked]
    assert not any(action.verb == "split" for action in actions)
    close(run_on("LLVM", ast, inputs(ast), actions), run_on("LLVM", ast, inputs(ast), []))


def test_threads_share_panels_where_terms_are_in_blocks() -> None:
    """Once the blocks of terms stood outermost, where no thread can share them."""
    root = matmul(data(0, 128, 4096), permute(data(1, 4096, 4096), (1, 0)))
    found = show_schedule(choose(merge_loops(only(root)), VECTORS).actions).replace("\n", "; ")
    assert "order i1 k0 i0;" in found
    assert found.endswith("thread i1")


def test_values_that_are_converted_are_packed_on_both_sides() -> None:
    left, right = (data(slot, 512, 512, dtype=dtypes.bfloat16).cast(dtypes.float32) for slot in (0, 1))
    assert [args[0] for args in packed(matmul(left, right))] == ["2", "1"]


SIZES = [(67, 40, 270), (130, 67, 515), (30, 4100, 257)]  # rows, terms, columns: four panels and more


@pytest.mark.parametrize("target", [VECTORS, NO_MASKS, NARROW], ids=lambda t: t.name)
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_packed_operands_give_the_same_product(
    sizes: tuple[int, int, int], turned: tuple[bool, bool], target: Target
) -> None:
    """Odd sizes: the last rows of a tile are gated where they are packed, and what lies past them is never stored."""
    rows, inner, columns = sizes
    left = permute(data(0, inner, rows), (1, 0)) if turned[0] else data(0, rows, inner)
    right = permute(data(1, columns, inner), (1, 0)) if turned[1] else data(1, inner, columns)
    ast = merge_loops(only(matmul(left, right)))
    actions = choose(ast, target).actions
    lowered(ast, target, actions, is_checked=True)
    close(run_on("LLVM", ast, inputs(ast), actions), run_on("LLVM", ast, inputs(ast), []))


@pytest.mark.parametrize(("rows", "inner", "columns"), [(513, 512, 511), (40, 66, 8), (54, 66, 24)])
def test_panels_name_only_loops_that_are_there(rows: int, inner: int, columns: int) -> None:
    """Named regression: lanes that a target without masks cannot have, and a sum cut by `rfactor`, not by `unroll`."""
    narrow = replace(VECTORS, vector_bytes=32, vector_registers=16, has_masks=False)
    for right in (data(1, inner, columns), permute(data(1, columns, inner), (1, 0))):
        lowered(only(matmul(data(0, rows, inner), right)), narrow, is_checked=True)


@pytest.mark.parametrize("target", [VECTORS, NO_MASKS], ids=["masks", "no masks"])
@pytest.mark.parametrize(
    ("rows", "columns", "inner"), [(46, 17, 49), (10, 16, 26), (38, 8, 44), (18, 13, 32), (82, 8, 18), (44, 17, 17)]
)
def test_a_packed_panel_names_the_loops_there_are(rows: int, columns: int, inner: int, target: Target) -> None:
    """Once refused: lanes that did not come about for want of masks, or copies of a sum that was grouped instead."""
    right = permute(data(1, columns, inner), (1, 0))
    lowered(only(matmul(data(0, rows, inner), right)), target, is_checked=True)


@pytest.mark.parametrize("target", [VECTORS, NARROW, NO_MASKS], ids=lambda t: t.name)
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_rows_that_are_windows_are_read_as_they_lie(stride: int, target: Target) -> None:
    """Named regression: x.unfold(0, 256, 1) @ w in float16. The copy of a window has one axis, of another name."""
    rows = window(data(0, 95 * stride + 256, dtype=dtypes.float16), 0, 256, stride)
    ast = merge_loops(only(matmul(*(u.cast(dtypes.float32) for u in (rows, data(1, 256, 512, dtype=dtypes.float16))))))
    actions = choose(ast, target).actions
    lowered(ast, target, actions, is_checked=True)
    close(run_on("LLVM", ast, inputs(ast), actions), run_on("LLVM", ast, inputs(ast), []))


def test_blocks_of_a_walk() -> None:
    ast = merge_loops(only(matmul(data(0, 64, 8), data(1, 8, 64))))
    facts, schedule = analyze(ast, VECTORS), Schedule(ast)
    assert in_blocks(schedule, facts, {"i1": (8, 2), "i0": (6, 1)}) == (["i1"], {"i1": ["i1.s"], "i0": ["i0"]})
    assert show_schedule(schedule.actions) == "split i1 4"
    assert in_blocks(Schedule(ast), facts, {"i1": (4, 4)}) == (["i0"], {"i1": ["i1"]})
