"""Codes of a few bits are multiplied where they lie: which sums are shifted, which are not, exact values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernmill.compiler import loops_of, merge_loops, parse_schedule
from kernmill.ir import Ops, Target, UOp, const, dtypes, elementwise, iota, permute, reduce_axes, reshape, substitute
from tests.compiler.kernels import VECTORS, Array, data, inputs, only, run_ast, run_on
from tests.compiler.passes import after

TARGET = replace(VECTORS, dots=frozenset({(dtypes.uint8, dtypes.int8)}))
ONE = "vectorize i0 16; unroll k0 4; unroll k2 4"  # one place: blocks and words are one loop
PLACES = "vectorize i0 16; unroll k2 4; unroll k3 4; unroll k1 {}"
WORDS = 4


def sum_of_codes(bits: int, first: int = 0, digits: int = 1, rows: int = 1, blocks: int = 3) -> UOp:
    """[rows, 16]: sums over bytes in words of 16 columns side by side: of each byte some codes, from bit `first` on."""
    stored = permute(data(0, blocks, WORDS, 16, 4, dtype=dtypes.uint8), (2, 0, 1, 3))
    by = elementwise(Ops.MUL, iota(digits, dtypes.uint8), const(dtypes.uint8, bits))
    by = reshape(elementwise(Ops.ADD, by, const(dtypes.uint8, first)), (digits, 1, 1))
    codes = elementwise(Ops.SHR, reshape(stored, (1, 16, blocks, 1, WORDS, 4)), by)
    codes = elementwise(Ops.AND, codes, const(dtypes.uint8, (1 << bits) - 1)).cast(dtypes.int32)
    x = data(1, rows, 1, blocks, digits, WORDS, 4, dtype=dtypes.int8).cast(dtypes.int32)
    return reduce_axes(elementwise(Ops.MUL, codes, x), Ops.ADD, (2, 3, 4, 5))


def codes_by_x(bits: int, first: int = 0, digits: int = 1, rows: int = 1, blocks: int = 3) -> UOp:
    """The kernel of such a sum."""
    return only(sum_of_codes(bits, first, digits, rows, blocks))


def shifts(ast: UOp, schedule: str, target: Target = TARGET) -> tuple[int, int]:
    """How many words are shifted, and how many sums."""
    nodes = after("hoist_shifts", ast, schedule, target).toposort()
    found = [node.dtype.scalar for node in nodes if node.op is Ops.SHR]
    return found.count(dtypes.uint8), found.count(dtypes.int32)


def test_one_shift_for_all_words() -> None:
    ast = after("hoist_shifts", codes_by_x(4, first=4), ONE, TARGET)
    masks = {node.src[1].arg for node in ast.toposort() if node.op is Ops.AND}
    assert masks == {240}
    assert shifts(codes_by_x(4, first=4), ONE) == (0, 1)
    assert shifts(codes_by_x(4), ONE) == (0, 0)


def test_sums_of_several_places_are_shifted_on_the_way() -> None:
    assert shifts(codes_by_x(2, digits=4), PLACES.format(4)) == (0, 3)
    assert shifts(codes_by_x(4, digits=2), PLACES.format(2)) == (0, 1)
    assert shifts(codes_by_x(3, digits=2, first=1), PLACES.format(2)) == (0, 2)


def test_a_place_that_a_loop_gives_stays() -> None:
    assert shifts(codes_by_x(2, digits=4), PLACES.partition("; unroll k1")[0])[1] == 0


def test_places_that_differ_within_a_word_stay() -> None:
    """All four codes of a byte side by side: a shift of its own in each lane."""
    by = elementwise(Ops.MUL, iota(4, dtypes.uint8), const(dtypes.uint8, 2))
    stored = permute(data(0, 8, 16, dtype=dtypes.uint8), (1, 0))
    codes = elementwise(Ops.SHR, reshape(stored, (16, 8, 1)), by)
    codes = elementwise(Ops.AND, codes, const(dtypes.uint8, 3)).cast(dtypes.int32)
    x = data(1, 1, 8, 4, dtype=dtypes.int8).cast(dtypes.int32)
    ast = only(reduce_axes(elementwise(Ops.MUL, codes, x), Ops.ADD, (1, 2)))
    arrays = inputs(ast)
    for schedule in ("vectorize i0 16; unroll k1 4", "vectorize i0 16; unroll k0 4; unroll k1 4"):
        nodes = after("hoist_shifts", ast, schedule, TARGET).toposort()
        assert not any(node.op is Ops.SHR and node.dtype.scalar is dtypes.int32 for node in nodes)
        np.testing.assert_array_equal(run_on("LLVM", ast, arrays, parse_schedule(schedule)), run_ast(ast, arrays))


def test_words_that_many_rows_share_are_shifted_once() -> None:
    """Of two rows two sums would be shifted in place of two words."""
    rows = f"unroll i0 2; {ONE.replace('i0', 'i1')}"
    ast = codes_by_x(4, first=4, rows=2)
    assert shifts(ast, rows) == (0, 2)
    assert shifts(ast, rows.replace("k0 4", "k0 2")) == (2, 0)


def test_large_bytes_stay_where_they_take_longer() -> None:
    target = replace(TARGET, dot_most=127)
    assert shifts(codes_by_x(4, first=4), ONE, target) == (4, 0)
    assert shifts(codes_by_x(2, first=2), ONE, target) == (0, 1)
    assert shifts(codes_by_x(2, digits=4), PLACES.format(4), target) == (4, 2)


def test_a_sum_that_might_overflow_stays() -> None:
    assert shifts(codes_by_x(4, first=4, blocks=2000), ONE) == (0, 1)
    assert shifts(codes_by_x(4, first=4, blocks=2100), ONE) == (4, 0)


def check(ast: UOp, schedule: str) -> None:
    """Exact, with the extreme values of every type among the data."""
    arrays: list[Array] = inputs(ast)
    for number, array in enumerate(arrays[1:], 1):
        if array.dtype.kind in "iu":
            limits, rng = np.iinfo(array.dtype), np.random.default_rng(number - 1)
            arrays[number] = rng.integers(limits.min, limits.max + 1, array.size).astype(array.dtype)
            arrays[number][::3], arrays[number][::7] = limits.min, limits.max
    np.testing.assert_array_equal(run_on("LLVM", ast, arrays, parse_schedule(schedule)), run_ast(ast, arrays))


def test_another_sum_may_have_numbers_among_its_terms() -> None:
    """Named regression: the largest of a row and of 1.0, copied, beside such a sum was an IndexError."""
    is_first = reshape(iota(2), (1, 1, 2)) < 1
    row = elementwise(Ops.WHERE, is_first, permute(data(2, 3, 16, 2), (1, 0, 2)), const(dtypes.float32, 1.0))
    largest = reshape(reduce_axes(row, Ops.MAX, (1, 2)), (16,))
    total = reshape(sum_of_codes(4, first=4).cast(dtypes.float32), (16,))
    ast, schedule = only(elementwise(Ops.MUL, total, largest)), "vectorize i0 16; unroll k2 4; unroll k4 4; unroll k1 2"
    assert shifts(ast, schedule) == (0, 1)
    check(ast, schedule)


def test_parts_that_change_with_other_loops_have_loops_of_their_own() -> None:
    """Named regression: x of one place is the same for all rows, so that its sum stands outside of their loop. Both
    parts ran over one loop, and the kernel was refused."""
    ast = merge_loops(codes_by_x(4, digits=2, rows=2))
    loops, table = loops_of(ast), dict[UOp, UOp]()
    for load in ast.toposort():
        if load.op is Ops.LOAD and load.dtype is dtypes.int8:
            place = substitute(load.src[0], {loops["i0"]: loops["i0"] * loops["k1"]})
            table[load] = load.replace(src=(place,))
    ast, schedule = substitute(ast, table), PLACES.format(2).replace("i0", "i1")
    assert shifts(ast, schedule) == (0, 1)
    check(ast, schedule)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(
    ("bits", "first", "digits"), [(4, 4, 1), (4, 0, 2), (2, 0, 4), (1, 0, 8), (3, 1, 2), (5, 5, 1)]
)
def test_values_are_exact(bits: int, first: int, digits: int, rows: int) -> None:
    """Also of codes that are cut off by the end of a byte."""
    ast = codes_by_x(bits, first, digits, rows)
    schedule = PLACES.format(digits) if digits > 1 else ONE
    schedule = schedule if rows == 1 else f"unroll i0 {rows}; {schedule.replace('i0', 'i1')}"
    assert shifts(ast, schedule)[1] > 0
    check(ast, schedule)
