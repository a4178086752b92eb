"""What the heuristic chooses for the shapes that matter; never which machine code comes out."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

from kernmill.compiler import choose, merge_loops, show_schedule
from kernmill.ir import (
    DType,
    Ops,
    Target,
    UOp,
    broadcast_to,
    const,
    dtypes,
    elementwise,
    iota,
    permute,
    reduce_axes,
    reshape,
    shrink,
    strided,
    take,
)
from tests.compiler.kernels import (
    SCALARS,
    VECTORS,
    convolution,
    data,
    lowered,
    matmul,
    only,
    small_kernels,
    softmax,
    total,
)

NO_MASKS = replace(VECTORS, name="sse", vector_bytes=16, vector_registers=16, has_masks=False)
AVX2 = replace(VECTORS, name="avx2", vector_bytes=32, vector_registers=16, min_mask_lane_bytes=4)


def chosen(root: UOp, target: Target = VECTORS) -> dict[str, list[tuple[str, ...]]]:
    found: dict[str, list[tuple[str, ...]]] = {}
    for action in choose(merge_loops(only(root)), target).actions:
        found.setdefault(action.verb, []).append(action.args)
    return found


def test_without_vectors_and_threads_nothing_is_done() -> None:
    for ast in small_kernels().values():
        assert choose(merge_loops(ast), SCALARS).actions == []


def test_with_threads_alone_the_outermost_loop_is_shared() -> None:
    found = choose(merge_loops(only(data(0, 64, 64) + 1.0)), replace(SCALARS, has_threads=True)).actions
    assert show_schedule(found) == "thread i0"


def test_a_map_is_vectors_and_threads() -> None:
    found = chosen(data(0, 512, 512) + 1.0)
    assert found["vectorize"] == [("i0", "16")]
    assert found["thread"] == [("i0",)]
    assert int(found["unroll"][0][1]) in (2, 4)


@pytest.mark.parametrize(("dtype", "columns", "lanes"), [
    (dtypes.uint8, 100, "4"), (dtypes.float16, 100, "4"), (dtypes.uint8, 257, "8"), (dtypes.float32, 100, "8"),
])  # fmt: skip
def test_narrow_lanes_have_no_masks_where_these_are_dear(dtype: DType, columns: int, lanes: str) -> None:
    """AVX2 has masks of 32 and 64 bits: largest bytes of 100 columns took 5 times as long by eight, with a mask at the
    end of each row; where no four lanes divide a loop scalars take longer still."""
    found = chosen(reduce_axes(data(0, 64, 33, columns, dtype=dtype), Ops.MAX, (0,)), AVX2)
    assert [args[1] for args in found["vectorize"]] == [lanes]


def test_what_is_one_value_for_all_lanes_needs_no_mask() -> None:
    """Once a byte for each row made lanes of floats half as many."""
    scale = data(1, 64, 1, 1, dtype=dtypes.int8).cast(dtypes.float32)
    found = chosen(reduce_axes(elementwise(Ops.MUL, data(0, 64, 33, 100), scale), Ops.ADD, (0,)), AVX2)
    assert [args[1] for args in found["vectorize"]] == ["8"]


def test_a_product_is_a_register_tile() -> None:
    found = chosen(matmul(data(0, 512, 512), data(1, 512, 512)))
    assert ("i1", "16") in found["vectorize"]
    tile = {args[0]: args[1] for args in found["unroll"]}
    assert int(tile["i0"]) * int(tile.get("i1", "1")) in range(8, 25), (
        "accumulators enough to hide latency, few enough to fit"
    )


def product(left: UOp, right: UOp, axis: int) -> UOp:
    return total(elementwise(Ops.MUL, left, right), axis)


def test_a_batch_of_small_products_is_no_large_one() -> None:
    """What all products of a batch read was taken for one operand that no cache holds."""
    for columns in (4, 10, 16):
        left, right = data(0, 1000, 20, 32), data(1, 1000, columns, 32)
        found = chosen(product(reshape(left, (1000, 20, 1, 32)), reshape(right, (1000, 1, columns, 32)), 3))
        assert "accumulate" not in found


def test_rows_that_two_vectors_have_room_for_are_one_tile() -> None:
    assert ("i0", "9") in chosen(matmul(data(0, 9, 784), data(1, 784, 100)))["unroll"]


def test_lanes_that_would_be_half_empty_leave_them_to_a_panel_that_turns() -> None:
    """A convolution of single places with a stride of 2: 17 places in a row, 64 channels."""
    x = reshape(strided(data(0, 8, 64, 33, 33), [1, 1, 2, 2]), (8, 1, 64, 17, 17))
    found = chosen(product(x, reshape(data(1, 64, 64), (1, 64, 64, 1, 1)), 2))
    assert ("i1", "16") in found["vectorize"]
    assert found["stage"]


def test_a_row_sum_has_lanes_and_groups_of_its_own() -> None:
    found = chosen(total(data(0, 2, 4096), 1))  # L1 may hold them
    assert found["vectorize"] == [("k0", "16")]
    assert found["rfactor"] == [("k0", "4")]
    assert found.keys().isdisjoint({"unroll", "interleave", "prefetch"})


def test_short_rows_are_lanes_and_turn_in_registers() -> None:
    """Named regression: the maximum of 128 rows of 10 gathered each term, and took twice as long."""
    for size in (9, 10, 13, 20, 23):
        found = chosen(total(data(0, 256, size), 1))
        assert found["vectorize"] == [("i0", "16")]
        assert ("k0", str(size)) in found["unroll"]
        assert prod(int(count) for _, count in found["unroll"]) <= 96
    for size in (27, 112):
        assert chosen(total(data(0, 256, size), 1))["vectorize"] == [("k0", "16")]
    by_a_vector = chosen(matmul(data(0, 256, 10), data(1, 10, 1)))
    assert (by_a_vector["vectorize"], ("k0", "10") in by_a_vector["unroll"]) == ([("i0", "16")], True)


def test_short_rows_are_folded_eight_at_a_time() -> None:
    """Named regression: each row of 32 was folded alone, in a vector of 16 lanes: up to twice as long."""
    for size in (16, 24, 32, 64):
        found = chosen(total(data(0, 256, size), 1))
        assert (found["vectorize"], found["unroll"]) == ([("k0", "8")], [("k0", str(size // 8)), ("i0", "8")])
    assert chosen(total(data(0, 100, 32), 1))["unroll"] == [("k0", "4"), ("i0", "4")], "no row is left over"
    for other in (data(0, 255, 32), data(0, 1 << 18, 32), data(0, 256, 104)):  # odd, from memory, long
        assert ("k0", "8") not in chosen(total(other, 1))["vectorize"]


def test_what_is_gathered_is_gathered_into_whole_vectors() -> None:
    """Named regression: the last step of topk, of pairs of pairs, had two lanes, both gathered: 3.6 times as long."""
    x = reshape(data(0, 64, 16), (64, 2, 2, 4))
    some = elementwise(Ops.MAX, x, strided(x, (1, -1, -1, -1)))
    last = shrink(elementwise(Ops.MAX, some, strided(some, (1, 1, 1, -1))), ((0, 64), (0, 2), (0, 2), (0, 1)))
    assert chosen(last)["vectorize"] == [("i0", "16")]


def test_lanes_are_those_of_what_is_read() -> None:
    """Named regression: whether any of 8192 positions is out of range had 16 lanes of 8 bytes, for its one bool."""
    places = data(0, 8192, dtype=dtypes.int64)
    is_out = elementwise(Ops.LT, places, const(dtypes.int64, 0))
    assert chosen(reduce_axes(is_out, Ops.OR, (0,)))["vectorize"] == [("k0", "8")]


def test_sums_of_what_is_computed_have_lanes_too() -> None:
    """Nothing that is loaded steps with their loops, and so none was chosen: random numbers one by one."""
    random = elementwise(Ops.SIN, iota(4096).cast(dtypes.float32))
    assert chosen(total(random, 0))["vectorize"] == [("k0", "16")]
    assert chosen(total(random + data(0, 1), 0))["vectorize"] == [("k0", "16")]


def test_rows_that_are_read_once_are_read_in_streams_far_from_each_other() -> None:
    found = chosen(total(data(0, 512, 4096), 1))
    assert (found["interleave"], found["prefetch"]) == ([("i0", "4")], [("2048",)])
    assert "unroll" not in found
    assert chosen(total(data(0, 511, 4096), 1))["interleave"] == [("i0", "4")]  # of the last part a row is masked
    assert chosen(total(data(0, 5, 1 << 15), 1))["interleave"] == [("i0", "3")]
    few = [chosen(total(data(0, rows, 1 << 15), 1)).get("interleave") for rows in (2, 3, 4)]
    assert few == [None, [("i0", "2")], [("i0", "2")]]  # two threads find something
    both = chosen(total(data(0, 512, 4096) * data(1, 512, 4096), 1))
    assert both["interleave"] == [("i0", "2")]  # as many streams in all
    three = chosen(total(data(0, 512, 4096) * data(1, 512, 4096) * data(2, 512, 4096), 1))
    assert ("interleave" in three, three["prefetch"]) == (False, [("2048",)])
    three_columns = chosen(matmul(data(0, 512, 4096), permute(data(1, 3, 4096), (1, 0))))
    assert [distance for (distance,) in three_columns["prefetch"]] == ["4096"]


def test_what_a_cpu_reads_ahead_is_not_asked_for() -> None:
    target = replace(VECTORS, has_hardware_prefetch=True)
    found = chosen(total(data(0, 4096, 4096), 1), target)
    assert "interleave" in found
    assert "prefetch" not in found
    few = [chosen(matmul(data(0, rows, 4096), data(1, 4096, 4096)), target) for rows in (8, 32)]
    assert ["prefetch" in one for one in few] == [False, True]  # panels are copied in pieces, from far apart


def test_neighbouring_rows_in_pieces_are_read_together() -> None:
    """Sums over images for each channel went through memory in four streams of short pieces: 1.7 times as long."""
    found = chosen(reduce_axes(data(0, 128, 16, 576), Ops.ADD, (0, 2)))
    assert found["unroll"] == [("i0", "8")]
    assert found.keys().isdisjoint({"interleave", "prefetch"})
    half = chosen(reduce_axes(data(0, 128, 16, 576), Ops.ADD, (0, 2)), replace(VECTORS, vector_registers=16))
    assert half["unroll"] == [("i0", "4")]
    assert chosen(reduce_axes(data(0, 8, 2, 576), Ops.ADD, (0, 2)))["unroll"] == [("i0", "2")]  # no tile of one
    assert chosen(reduce_axes(data(0, 500, 3, 64), Ops.ADD, (0, 2)))["unroll"] == [("i0", "3")]  # nor half a tile
    assert "interleave" in chosen(reduce_axes(data(0, 4, 32, 1 << 16), Ops.ADD, (0, 2)))  # pieces as good as rows
    assert "interleave" in chosen(total(data(0, 128, 16 * 576), 1))


def test_products_whose_terms_lie_in_pieces_have_their_register_tile() -> None:
    """einsum("bhik,bhjk->hij") took 2.6 times as long with neighbouring h read together: rows are read for each j."""
    left, right = reshape(data(0, 8, 4, 32, 64), (8, 4, 32, 1, 64)), reshape(data(1, 8, 4, 32, 64), (8, 4, 1, 32, 64))
    found = chosen(reduce_axes(elementwise(Ops.MUL, left, right), Ops.ADD, (0, 4)))
    assert found["unroll"] == [("i2", "4"), ("i1", "4")]


def test_what_is_computed_of_each_value_does_not_end_the_streams() -> None:
    x = data(0, 512, 4096)
    for _ in range(6):
        x = x * 1.5 + 0.5
    assert chosen(total(x, 1))["interleave"] == [("i0", "4")]
    for _ in range(7):
        x = x * 1.5 + 0.5
    assert "interleave" not in chosen(total(x, 1))  # enough to do


def test_a_view_is_as_large_as_what_is_read_of_it() -> None:
    whole = data(0, 4096, 4096)
    some = permute(shrink(whole, ((0, 3), (0, 4096))), (1, 0))
    assert "accumulate" not in chosen(matmul(whole, some))


def test_a_column_sum_has_its_lanes_side_by_side() -> None:
    found = chosen(total(data(0, 4096, 512), 0))
    assert found["vectorize"] == [("i0", "16")]


def test_softmax_vectorizes_all_three_passes() -> None:
    found = chosen(softmax(data(0, 512, 1024)))
    assert {name for name, _ in found["vectorize"]} == {"k1", "t0_0", "i1"}


def test_a_convolution_is_vectorized_over_places_or_channels() -> None:
    found = chosen(convolution(data(0, 8, 16, 18, 18), data(1, 32, 16, 3, 3)))
    assert found["vectorize"]
    assert found["unroll"]


def test_the_last_pass_over_a_row_asks_for_the_next() -> None:
    x = data(0, 4096, 4096)
    scaled = elementwise(Ops.MUL, x, broadcast_to(reshape(total(x, 1), (4096, 1)), x.shape))
    assert chosen(scaled)["prefetch"] == [("16384", "i1")]
    assert "prefetch" not in chosen(softmax(data(0, 64, 4096)))  # the caches have it


def test_the_next_row_goes_to_l2_where_l1_does_not_hold_it_besides_what_this_row_needs() -> None:
    x, large = data(0, 4096, 4096), replace(VECTORS, l1_bytes=48 << 10)
    of_each_row = broadcast_to(reshape(total(x, 1), (4096, 1)), x.shape)
    scaled = elementwise(Ops.MUL, x, of_each_row)
    assert chosen(scaled, replace(VECTORS, l1_bytes=31 << 10))["prefetch"] == [("16384", "i1", "L2")]
    weighted = scaled * broadcast_to(reshape(data(1, 4096), (1, 4096)), x.shape)  # 16 KB of weights for all rows
    assert chosen(weighted)["prefetch"] == [("16384", "i1", "L2")]
    assert chosen(weighted, large)["prefetch"] == [("16384", "i1")]
    assert chosen(softmax(x))["prefetch"] == [("16384", "t0_0", "L2")]  # and 16 KB of the row that is kept
    assert chosen(softmax(x), large)["prefetch"] == [("16384", "t0_0")]


def test_large_results_go_around_the_caches() -> None:
    assert "stream" in chosen(data(0, 4096, 4096) + 1.0)
    assert "stream" not in chosen(data(0, 64, 64) + 1.0)


def test_a_large_result_of_several_passes_holds_their_row() -> None:
    """Its lines are fetched while the row is filled, and written back while the next one is."""
    found = chosen(softmax(data(0, 4096, 4096)))
    assert found["buffer_in_output"] == [("t0_0",)]
    assert "stream" not in found
    assert "buffer_in_output" not in chosen(softmax(data(0, 64, 64)))


def test_where_streams_are_fast_several_passes_write_around_the_caches() -> None:
    """They drain while the next row is read, so that no line of the result is fetched first."""
    target = replace(VECTORS, has_fast_nontemporal_stores=True)
    found = chosen(softmax(data(0, 4096, 4096)), target)
    assert "stream" in found
    assert "buffer_in_output" not in found
    assert found["prefetch"] == [("16384", "t0_0", "L2")]
    assert "stream" not in chosen(softmax(data(0, 64, 64)), target)


@pytest.mark.parametrize(("terms", "verb"), [(128, "prefetchw"), (4096, "accumulate")])
def test_where_streams_are_fast_long_sums_go_through_the_caches(terms: int, verb: str) -> None:
    """`stream` did not fit where lines are claimed: 4200 x 128 by 4200 ran as it was written, 50 times as long."""
    target = replace(VECTORS, has_fast_nontemporal_stores=True)
    found = chosen(matmul(data(0, 4200, terms), data(1, terms, 4200)), target)
    assert verb in found
    assert "stream" not in found


def test_large_results_ask_ahead_whatever_is_computed() -> None:
    x = data(0, 4096, 4096)
    for _ in range(10):
        x = x * 1.5 + 0.5
    assert chosen(x)["prefetch"] == [("2048",)]


def test_large_results_ask_ahead_for_rows_and_for_looked_up_rows() -> None:
    rows = take(data(0, 4096, 768), data(1, 8192, dtype=dtypes.int64), 0)
    assert "stream" in chosen(rows)
    assert "prefetch" in chosen(rows)
    assert "prefetch" in chosen(data(0, 4096, 4096) + 1.0)


def test_a_loop_of_two_that_is_read_in_both_orders_is_copied_out() -> None:
    x = data(0, 2, 64)
    swapped = strided(x, (-1, 1))
    assert chosen(elementwise(Ops.MAX, x, swapped))["unroll"] == [("i0", "2")]
    assert ("i0", "2") not in chosen(elementwise(Ops.MAX, x, data(1, 2, 64))).get("unroll", [])


def test_rows_that_are_shorter_than_a_vector_are_copied_out() -> None:
    """Four bytes each, laid in another order: an iteration is 16 of them, or as many as divide their number."""
    for rows, together in ((32, "16"), (48, "16"), (12, "4")):
        turned = permute(data(0, rows, 6, 4, dtype=dtypes.uint8), (1, 0, 2))
        assert chosen(turned)["unroll"] == [("i1", together)]
    assert "unroll" not in chosen(permute(data(0, 7, 6, 4, dtype=dtypes.uint8), (1, 0, 2)))


def test_without_masks_lanes_divide_the_loop() -> None:
    for size in (3, 5, 12, 17, 70, 96):
        for _, lanes in chosen(data(0, size) + 1.0, NO_MASKS).get("vectorize", []):
            assert size % int(lanes) == 0


def test_eight_bytes_have_half_the_lanes() -> None:
    from kernmill.ir import dtypes

    assert chosen(data(0, 512, 512, dtype=dtypes.float64) + 1.0)["vectorize"] == [("i0", "8")]


def test_a_transpose_is_no_reason_to_give_up() -> None:
    assert chosen(permute(data(0, 256, 256), (1, 0)) + 1.0)["vectorize"]


@pytest.mark.parametrize(
    "target",
    [VECTORS, NO_MASKS, replace(VECTORS, name="avx2", vector_bytes=32, vector_registers=16)],
    ids=lambda t: t.name,
)
@pytest.mark.parametrize("name", small_kernels())
def test_every_choice_can_be_lowered(name: str, target: Target) -> None:
    lowered(small_kernels()[name], target, is_checked=True)


def test_the_choice_depends_on_the_shape_alone() -> None:
    x = data(0, 33, 65)
    ast = only(total(elementwise(Ops.MUL, x, x), 1))
    assert choose(ast, VECTORS).actions == choose(ast, VECTORS).actions


@pytest.mark.parametrize("rows", [1, 3, 8, 32])
def test_few_rows_read_a_large_matrix_in_its_order(rows: int) -> None:
    """Blocks of terms are outermost but for chunks of columns, and the next block is asked for."""
    found = choose(merge_loops(only(matmul(data(0, rows, 4096), data(1, 4096, 4096)))), VECTORS).actions
    verbs = {action.verb: action.args for action in found}
    assert verbs["accumulate"] == ("k0", "8" if rows <= 8 else "16")
    columns = "i1" if rows > 1 else "i0"
    assert verbs["order"][:3] == (columns, "k0", f"{columns}.s")
    assert verbs["thread"] == (columns,)
    together = 2 if rows in (8, 32) else 1
    ahead = (str(int(verbs["accumulate"][1]) * together * 4096 * 4),)
    assert verbs.get("prefetch") == (ahead if rows > 1 else None)  # one row has nothing to compute meanwhile
    staged = [action.args[0] for action in found if action.verb == "stage"]
    assert staged == {1: [], 3: ["1"], 8: ["1"], 32: ["1", "2"]}[rows]  # the matrix only if rows make several tiles


@pytest.mark.parametrize("terms", [4097, 100])
def test_eight_rows_whose_terms_make_no_pairs_read_it_so_too(terms: int) -> None:
    found = chosen(matmul(data(0, 8, terms), data(1, terms, 16384)))
    assert found["accumulate"] == [("k0", "8")]
    assert ("k0", "2") not in found["unroll"]


def test_rows_that_compute_longer_than_reading_takes_are_a_product_as_any() -> None:
    """256 rows fill half of an L2 of 2 MB, but took up to 1.15 times as long in the matrix's order."""
    large = replace(VECTORS, l2_bytes=2 << 20)
    assert "accumulate" in chosen(matmul(data(0, 128, 4096), data(1, 4096, 4096)), large)
    assert "accumulate" not in chosen(matmul(data(0, 256, 4096), data(1, 4096, 4096)), large)


def test_what_is_dear_after_a_sum_is_not_made_anew_for_each_block_of_it() -> None:
    """32 x 2048 by 4096 columns with a sigmoid behind it took twice as long in the matrix's order."""
    product = matmul(data(0, 32, 2048), data(1, 2048, 4096))
    assert "accumulate" in chosen(product + 1.0)
    assert "accumulate" not in chosen(product * elementwise(Ops.EXP2, product))


@pytest.mark.parametrize("columns", [300, 1000])
def test_few_rows_read_a_narrow_matrix_in_its_order_too(columns: int) -> None:
    """In pieces of half its width, where that is less than a page: column after column took three times as long."""
    root = matmul(data(0, 24, 16384), data(1, 16384, columns))
    found = chosen(root)
    assert found["accumulate"] == [("k0", "16")]
    assert found["split"] == [("i1", {300: "2", 1000: "7"}[columns])]


def test_a_row_by_a_matrix_of_odd_width_has_a_tile() -> None:
    assert chosen(matmul(data(0, 1, 256), data(1, 256, 1000)))["unroll"][0] == ("i0", "8")


def test_blocks_of_a_sum_do_not_gather_their_results() -> None:
    """49 columns of a transposed matrix took 2.5 times as long: lanes were rows of the result, read for each block."""
    matrix = permute(data(1, 1024, 4096), (1, 0))
    assert "accumulate" not in chosen(matmul(matrix, data(0, 1024, 49)))
    assert "accumulate" in chosen(matmul(matrix, data(0, 1024, 8)))  # whose sums are in registers


def test_few_rows_with_a_small_matrix_are_a_product_as_any() -> None:
    assert "accumulate" not in chosen(matmul(data(0, 8, 512), data(1, 512, 512)))


def test_products_of_bytes_are_dots() -> None:
    vnni = replace(VECTORS, dots=frozenset({(dtypes.uint8, dtypes.int8)}))
    left, right = (data(slot, 64, 64, dtype=dtypes.int8).cast(dtypes.int32) for slot in (0, 1))
    assert any(u.op is Ops.DOT for u in lowered(only(matmul(left, right)), vnni, is_checked=True))


@pytest.mark.parametrize(("rows", "terms"), [(16, 4096), (24, 8192)])
def test_rows_by_a_large_transposed_matrix_read_it_once(rows: int, terms: int) -> None:
    """Regression: the loop over rows stood outside, and the matrix was read from memory for each four of them."""
    weight = permute(data(1, 4096, terms), (1, 0))
    found = choose(merge_loops(only(matmul(data(0, rows, terms), weight))), VECTORS).actions
    verbs = {action.verb: action.args for action in found}
    assert verbs["vectorize"][0] == "k0"
    assert verbs["order"] == (("i1", "i0") if rows == 16 else ("i1", "k0", "i0"))
    assert verbs["thread"] == ("i1",)


@pytest.mark.parametrize(("kind", "lanes"), [(dtypes.float16, "i1"), (dtypes.float32, "i0")])
def test_the_operand_that_is_converted_is_lanes(kind: DType, lanes: str) -> None:
    """Each of its values would be converted by itself: a prompt through float16 weights took 1.16 times as long."""
    weight = permute(data(1, 4864, 896, dtype=kind), (1, 0)).cast(dtypes.float32)
    assert chosen(matmul(data(0, 64, 896), weight))["vectorize"] == [(lanes, "16")]


@pytest.mark.parametrize(("rows", "terms", "verb"), [
    (4864, 896, "interleave"), (4863, 896, "interleave"), (4864, 900, "interleave"),
    (65536, 64, "interleave"), (512, 4096, "interleave"),
    (400, 896, "interleave"),  # L2 could hold it, but does not
    (8, 896, "unroll"),  # L1 may
])  # fmt: skip
def test_one_row_by_a_transposed_matrix(rows: int, terms: int, verb: str) -> None:
    found = chosen(matmul(data(0, 1, terms), permute(data(1, rows, terms), (1, 0))))
    other = "unroll" if verb == "interleave" else "interleave"
    assert (found["vectorize"], found[verb]) == ([("k0", "16")], [("i0", "4")])
    assert other not in found
    assert found.get("prefetch", []) == ([("2048",)] if verb == "interleave" else [])


@pytest.mark.parametrize(("rows", "parts"), [(4, 64), (64, 4)])
def test_streams_are_rows_that_share_the_other_operand(rows: int, parts: int) -> None:
    """A long product is cut into parts: each term of a part is read once for some rows, not once for each."""
    left, right = (
        reshape(data(slot, count, parts * 4096), (count, parts, 4096)) for slot, count in ((0, 1), (1, rows))
    )
    found = chosen(total(broadcast_to(left, (rows, parts, 4096)) * right, 2))
    assert (found["interleave"], found["prefetch"]) == ([("i0", "4")], [("2048",)])
    assert found["thread"] == [("i0",) if rows > 4 else ("i1",)]


@pytest.mark.parametrize(("rows", "columns", "lanes", "copies"), [
    (64, 1000, "i1", ("i0", "16")),
    (64, 17, "i1", ("i0", "17")),
    (257, 300, "i0", ("i1", "16")),  # the last block is a part of its own
    (300, 257, "i1", ("i0", "16")),
])  # fmt: skip
def test_blocks_of_a_transpose_fill_their_loop(rows: int, columns: int, lanes: str, copies: tuple[str, str]) -> None:
    found = chosen(elementwise(Ops.SQRT, permute(data(0, rows, columns), (1, 0))))
    assert found["vectorize"] == [(lanes, "16")]
    assert found["unroll"] == [copies]


def test_short_rows_are_woven() -> None:
    scaled = data(0, 1000, 3) * broadcast_to(reshape(data(1, 3), (1, 3)), (1000, 3))
    found = chosen(scaled)
    assert found["vectorize"] == [("i0", "16")]
    assert found["unroll"] == [("i1", "3")]


def test_products_of_few_terms_write_a_large_result_line_by_line() -> None:
    assert "stage" not in chosen(matmul(data(0, 1500, 32), data(1, 32, 1000)))
    assert "stage" in chosen(matmul(data(0, 1500, 128), data(1, 128, 1000)))


def running(rows: int, size: int = 16, dtype: DType = dtypes.float32) -> UOp:
    """Running sums of rows: of the same terms each place chooses those up to its own."""
    shape = (rows, size, size)
    place, term = (broadcast_to(reshape(iota(size), where), shape) for where in ((1, size, 1), (1, 1, size)))
    x = broadcast_to(reshape(data(0, rows, size, dtype=dtype), (rows, 1, size)), shape)
    return total(elementwise(Ops.WHERE, elementwise(Ops.LT, place, term), const(dtype, 0), x), 2)


def test_short_running_sums_have_rows_as_lanes() -> None:
    found = chosen(running(4096))
    assert found["vectorize"] == [("i0", "16")]
    assert found["unroll"] == [("i1", "16"), ("k0", "16")]
    assert "stream" not in found
    assert "stream" in chosen(running(1 << 20))
    assert chosen(running(4099))["vectorize"] == [("i1", "16")]  # copies with masks do not turn


def running_down(size: int, columns: int, dtype: DType = dtypes.float32) -> UOp:
    """Running sums of columns."""
    shape = (size, columns, size)
    place, term = (broadcast_to(reshape(iota(size), where), shape) for where in ((size, 1, 1), (1, 1, size)))
    x = broadcast_to(reshape(permute(data(0, size, columns, dtype=dtype), (1, 0)), (1, columns, size)), shape)
    return total(elementwise(Ops.WHERE, elementwise(Ops.LT, place, term), const(dtype, 0), x), 2)


def test_short_running_sums_of_columns_have_columns_as_lanes() -> None:
    """Each place added up all terms before it: a `cumsum` of 300 x 1000 over the first axis took 4 times as long."""
    for columns, lanes in ((1000, "16"), (999, "16"), (3, "4")):
        found = chosen(running_down(15, columns))
        assert (found["vectorize"], found["unroll"]) == ([("i1", lanes)], [("i0", "15"), ("k0", "15")])
    assert ("i0", "15") not in chosen(running_down(15, 1)).get("unroll", [])
    assert ("i0", "33") not in chosen(running_down(33, 1000)).get("unroll", [])


def test_running_sums_of_columns_are_made_side_by_side_in_narrow_vectors() -> None:
    """Rows turn in registers, two vectors of terms at the most; columns, for which that was the limit as well, do not:
    `cumsum` of 300 x 1000 int64 with AVX2 took 5 times as long."""
    for target, lanes in ((AVX2, "4"), (NO_MASKS, "2")):
        found = chosen(running_down(15, 1000, dtypes.int64), target)
        assert (found["vectorize"], found["unroll"]) == ([("i1", lanes)], [("i0", "15"), ("k0", "15")])
    assert ("i1", "16") in chosen(running(4096), AVX2)["unroll"]
    assert ("i1", "16") not in chosen(running(4096, dtype=dtypes.int64), AVX2).get("unroll", [])


def test_terms_that_are_all_lanes_are_not_cut_in_blocks() -> None:
    """Once no schedule fitted: a short sum between operands that outgrow the caches."""
    ast = only(total(elementwise(Ops.MUL, data(0, 3, 23, 1, 15), data(1, 3, 1, 5, 15)), 3))
    lowered(ast, replace(VECTORS, l2_bytes=1 << 10), is_checked=True)


def test_sums_of_which_nothing_is_chosen_are_no_running_sums() -> None:
    """Sums of exp(x - c[place]) took 20 times as long to compile and ran longer; so did those of 32 terms."""
    x, c = reshape(data(0, 4096, 16), (4096, 1, 16)), broadcast_to(reshape(data(1, 16), (1, 16, 1)), (4096, 16, 16))
    pairs = broadcast_to(x, (4096, 16, 16)) + c
    assert ("k0", "16") not in chosen(total(elementwise(Ops.EXP2, pairs), 2)).get("unroll", [])
    assert ("i0", "16") not in chosen(running(4096, 32)).get("vectorize", [])


def test_long_sums_and_sums_of_windows_write_as_others_do() -> None:
    assert "stream" in chosen(matmul(data(0, 4096, 16), data(1, 16, 4096)))
    assert "stream" not in chosen(matmul(data(0, 4096, 17), data(1, 17, 4096)))


def test_bytes_of_words_that_are_looked_up_are_made_together() -> None:
    """Once lanes were the four bytes of a word, each with a lookup of its own: eight times as long."""
    index = permute(data(0, 32, 256, dtype=dtypes.uint8), (1, 0)).cast(dtypes.int32)
    point = broadcast_to(reshape(take(data(1, 256, dtype=dtypes.uint32), index, 0), (256, 32, 1)), (256, 32, 4))
    place = broadcast_to(reshape(iota(4, dtypes.uint32), (1, 1, 4)), (256, 32, 4))
    found = chosen((point >> place).cast(dtypes.uint8))
    assert found["vectorize"] == [("i1", "16")]
    assert found["unroll"] == [("i2", "4"), ("i0", "8")]


def test_bytes_that_lie_side_by_side_in_a_table_and_words_of_large_ones_are_looked_up_one_by_one() -> None:
    """Colours of a palette took 2.2 times as long with words as lanes, a table of 64 MB 1.3 times."""
    index = permute(data(0, 64, 100, dtype=dtypes.uint8), (1, 0)).cast(dtypes.int32)
    colours = take(data(1, 256, 4, dtype=dtypes.uint8), index, 0)
    assert chosen(colours)["vectorize"] == [("i2", "4")]
    point = broadcast_to(reshape(take(data(1, 1 << 24, dtype=dtypes.uint32), index, 0), (100, 64, 1)), (100, 64, 4))
    place = broadcast_to(reshape(iota(4, dtypes.uint32), (1, 1, 4)), (100, 64, 4))
    assert chosen((point >> place).cast(dtypes.uint8))["vectorize"] == [("i2", "4")]


def test_strided_lanes_are_reused_too() -> None:
    """Named regression: a 1 x 1 convolution with stride 2 read its image again for each output channel, and took seven
    times as long."""
    root = convolution(data(0, 1, 256, 56, 56), data(1, 512, 256, 1, 1), 2)
    found = [str(action) for action in choose(merge_loops(only(root)), VECTORS).actions]
    assert "unroll i0 8" in found, found
