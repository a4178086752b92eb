"""Long sums in levels."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from kernmill.compiler import parse_schedule
from kernmill.ir import Ops, UOp, dtypes, elementwise, reduce_axes
from kernmill.renderers import LLVMRenderer
from tests.compiler.kernels import (
    SCALARS,
    causal_kernel,
    close,
    data,
    inputs,
    layer_norm,
    lowered,
    matmul,
    only,
    run_ast,
    run_on,
    small_kernels,
    total,
    triangle,
)  # fmt: skip
from tests.compiler.tiles import TILES, product

block_sums = importlib.import_module("kernmill.compiler.lower.block_sums")  # for the length of its blocks


def levels(ast: UOp, schedule: str = "") -> list[tuple[int, ...]]:
    """How often the loops of each accumulator run, inner accumulators first; -1: as often as a value says."""
    opened, made, found = list[UOp](), dict[UOp, int](), list[tuple[int, ...]]()
    for u in lowered(ast, SCALARS, parse_schedule(schedule), is_checked=True):
        if u.op is Ops.RANGE:
            opened.append(u)
        elif u.op is Ops.END:
            opened.pop()
        elif u.op is Ops.REG:
            made[u] = len(opened)
        elif u.op is Ops.SET:
            sizes = (loop.src[0] for loop in opened[made[u.src[0]] :])
            found.append(tuple(size.arg if size.is_const else -1 for size in sizes))
    return found


@pytest.mark.parametrize(
    ("length", "want"),
    [
        (128, [(128,)]), (129, [(43,), (3,)]), (320, [(64,), (5,)]), (4096, [(64,), (64,)]), (313, [(-1,), (5,)]),
        (1 << 18, [(64,), (64,), (64,)]),
    ],
)  # fmt: skip
def test_a_long_sum_has_levels(length: int, want: list[tuple[int, ...]]) -> None:
    assert levels(only(total(data(0, 17, length), 1))) == want


@pytest.mark.parametrize(
    ("shape", "want"),
    [
        ((10, 3, 10, 2), [(10, 10)]), ((40, 3, 20, 2), [(4, 20), (10,)]), ((400, 3, 5, 2), [(10, 5), (40,)]),
        ((40, 3, 64, 2), [(64,), (40,)]), ((400, 3, 200, 2), [(50,), (16, 4), (25,)]),
    ],
)  # fmt: skip
def test_a_sum_over_two_loops_has_levels(shape: tuple[int, ...], want: list[tuple[int, ...]]) -> None:
    assert levels(only(total(data(0, *shape), 0, 2))) == want


def test_whole_numbers_and_largest_elements_stay() -> None:
    assert levels(only(total(data(0, 4096, dtype=dtypes.int32), 0))) == [(4096,)]
    assert levels(only(reduce_axes(data(0, 4096), Ops.MAX, (0,)))) == [(4096,)]
    x = data(0, 3, 4096)  # in one loop with a sum: no accumulator more
    found = levels(only(elementwise(Ops.ADD, total(x, 1), reduce_axes(x, Ops.MAX, (1,)))))
    assert sorted(found) == [(64,), (64,), (64, 64)]


def test_a_tile_of_a_product_stays() -> None:
    ast = only(matmul(data(0, 16, 4096), data(1, 4096, 16)))
    assert levels(ast, "unroll i0 4\nunroll i1 4") == [(4096,)] * 16


def test_tiles_of_a_matrix_unit_stay() -> None:
    """It adds products to a tile, nothing else: products of half types with more than 4,096 terms did not compile."""
    for size in (16, 64):
        uops = lowered(product((size, 16384, size)), TILES)
        registers = [u for u in uops if u.op is Ops.REG]
        assert len(registers) == sum(u.op is Ops.MMA for u in uops) == {16: 1, 64: 4}[size]
        assert LLVMRenderer(TILES).render("k", uops)


def test_a_loop_that_ends_with_a_mask_stays() -> None:
    assert levels(only(triangle(1000, 1000))) == [(-1,)]


@pytest.mark.parametrize("shape", [(2, 1000), (3, 313), (700, 5), (2, 4099), (7, 9, 300)], ids=str)
def test_the_same_terms(shape: tuple[int, ...]) -> None:
    """Also where a block is not whole: its loop ends early."""
    for axes in ((0,), (1,), (0, len(shape) - 1)):
        ast = only(total(data(0, *shape), *axes))
        arrays = [np.rint(array) for array in inputs(ast)]  # whole numbers: exact in any order
        want = run_ast(ast, arrays).tolist()
        assert run_on("LLVM", ast, arrays).tolist() == want
        assert run_on("PYTHON", ast, arrays).tolist() == want


SMALL = {**small_kernels(), "causal": causal_kernel(), "wide": only(layer_norm(data(0, 9, 70)))}


@pytest.mark.parametrize("block", [2, 3, 8])
@pytest.mark.parametrize("name", SMALL)
def test_short_blocks(name: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nearly all loops are cut, sums that are inside others, kept rows and masks still have all their terms."""
    ast = SMALL[name]
    arrays = inputs(ast)
    want = run_on("PYTHON", ast, arrays, [])
    monkeypatch.setattr(block_sums, "_BLOCK", block)
    monkeypatch.setattr(block_sums, "_MOST_SUMS", 99)
    for device in ("PYTHON", "LLVM"):
        close(run_on(device, ast, arrays, []), want)
        close(run_on(device, ast, arrays), want)
