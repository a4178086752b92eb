"""Operations and bytes of a kernel."""

from __future__ import annotations

from kernmill.compiler import estimate, find_units
from kernmill.ir import Ops, UOp, dtypes, elementwise, expand, permute, reshape
from tests.compiler.kernels import data, matmul, only, softmax, total


def test_a_map_counts_each_element() -> None:
    cost = estimate(only(elementwise(Ops.MUL, data(0, 10, 10), data(1, 10, 10)) + 1.0))
    assert (cost.flops, cost.bytes_moved) == (200, 1200)


def test_a_product_is_two_operations_a_step() -> None:
    cost = estimate(only(matmul(data(0, 8, 16), data(1, 16, 32))))
    assert cost.flops == 2 * 8 * 16 * 32
    assert cost.bytes_moved == 4 * (8 * 16 + 16 * 32 + 8 * 32)


def test_a_buffer_read_twice_counts_once() -> None:
    assert estimate(only(softmax(data(0, 8, 16)))).bytes_moved == 2 * 4 * 8 * 16


def test_only_floats_are_flops() -> None:
    cost = estimate(only(total(data(0, 8, 16, dtype=dtypes.int32), 1)))
    assert cost.flops == 0


def test_conversions_and_selections_are_no_flops() -> None:
    x = data(0, 8, 16)
    chosen = (x < 1.0).where(x.cast(dtypes.float16).cast(dtypes.float32), x)
    assert estimate(only(chosen + 1.0)).flops == 8 * 16


def test_what_takes_longer_counts_for_more() -> None:
    x = data(0, 64, 64)
    plain, costly = estimate(only(x + 1.0)), estimate(only(x.alu(Ops.EXP).alu(Ops.SIN).alu(Ops.EXP).alu(Ops.SIN)))
    assert costly.work.functions > plain.work.functions == 0


def test_what_another_loop_reads_again_is_counted_by_itself() -> None:
    """A kernel that reads its rows twice was predicted to take as long as one that reads them once."""
    work = estimate(only(softmax(data(0, 8, 16)))).work
    assert (work.size_bytes, work.again_bytes) == (2 * 4 * 8 * 16, 4 * 8 * 16)
    assert estimate(only(matmul(data(0, 8, 16), data(1, 16, 32)))).work.again_bytes == 0
    x = data(0, 8, 16)
    assert estimate(only(x + x)).work.again_bytes == 0


def test_sums_and_transpositions_are_counted_by_themselves() -> None:
    rows = estimate(only(total(data(0, 32, 64), 1))).work
    assert (rows.sums, rows.products, rows.crossed_bytes) == (32 * 64, 0, 0)
    x = data(0, 32, 64)
    assert estimate(only(permute(x, (1, 0)) + 1.0)).work.crossed_bytes == 2 * 4 * 32 * 64
    assert estimate(only(x + 1.0)).work.crossed_bytes == 0
    assert estimate(only(total(x, 0))).work.column_bytes == 4 * 32 * 64
    assert estimate(only(matmul(data(0, 1, 64), data(1, 64, 32)))).work.column_bytes == 4 * 64 * 32
    assert estimate(only(matmul(data(0, 8, 64), data(1, 64, 32)))).work.column_bytes == 0


def test_long_rows_are_counted_by_themselves() -> None:
    few = estimate(only(matmul(data(0, 8, 64), data(1, 64, 1024)))).work
    assert few.long_products == few.products == 8 * 64 * 1024
    assert estimate(only(matmul(data(0, 8, 64), data(1, 64, 1023)))).work.long_products == 0
    assert estimate(only(matmul(data(0, 8, 1024), permute(data(1, 64, 1024), (1, 0))))).work.long_products == 0
    one = estimate(only(matmul(data(0, 1, 64), data(1, 64, 1024)))).work
    assert (one.long_products, one.long_column_bytes) == (0, 4 * 64 * 1024)
    for rows, high, wide in ((8, 64, 1024), (8, 64, 1023), (1, 64, 1024)):
        product = matmul(data(0, rows, high), data(1, high, wide))
        leaves = [node for node in product.toposort() if node.op is Ops.PARAM]
        units, _, _ = find_units([product], ["A"] * len(leaves))
        assert sum(unit.long_products for unit in units) == estimate(only(product)).work.long_products
    windows = UOp(Ops.WINDOW, dtypes.float32, (data(0, 2048, 8),), (0, 3, 1, 1, 2046))
    weights = expand(reshape(data(1, 3), (1, 1, 3)), windows.shape)
    convolution = total(elementwise(Ops.MUL, windows, weights), 2)  # named regression: its units were an IndexError
    assert find_units([convolution], ["A", "A"])[0][-1].products == 2046 * 8 * 3
