"""Accumulators: REG, CARRY, SET, AFTER; fused products; masks; long sums in levels."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from kernmill.compiler import parse_schedule
from kernmill.ir import Op, Ops, UOp, dtypes, elementwise, pad, reduce_axes
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
from tests.compiler.passes import after
from tests.compiler.tiles import TILES, product

lower_reduces = importlib.import_module("kernmill.compiler.lower.lower_reduces")  # for the length of its blocks

X = data(0, 6, 32)


def count(ast: UOp, op: Op) -> int:
    return sum(node.op is op for node in ast.toposort())


@pytest.mark.parametrize("name", small_kernels())
def test_no_reduction_is_left(name: str) -> None:
    ast = after("lower_reduces", small_kernels()[name])
    assert count(ast, Ops.REDUCE) == 0
    kept = sum(node.op is Ops.AFTER and node.src[0].op is Ops.LOCAL for node in ast.toposort())
    assert count(ast, Ops.REG) == count(ast, Ops.AFTER) - kept == count(ast, Ops.SET)


def test_an_accumulator_starts_with_the_neutral_element() -> None:
    for op, start in ((Ops.ADD, 0.0), (Ops.MUL, 1.0), (Ops.MAX, -float("inf")), (Ops.MIN, float("inf"))):
        (register,) = [
            n for n in after("lower_reduces", only(reduce_axes(X, op, (1,))), "").toposort() if n.op is Ops.REG
        ]
        assert register.src[0].arg == start


def test_sums_of_products_are_fused() -> None:
    ast = only(matmul(data(0, 6, 9), data(1, 9, 20)))
    assert count(after("lower_reduces", ast), Ops.FMA) > 0
    assert count(after("lower_reduces", ast, "", SCALARS), Ops.FMA) == 1


def test_sums_of_two_products_are_one_chain() -> None:
    one, other = (elementwise(Ops.MUL, X, data(n, 6, 32)) for n in (1, 2))
    ast = after("lower_reduces", only(reduce_axes(elementwise(Ops.ADD, one, other), Ops.ADD, (1,))), "")
    assert (count(ast, Ops.FMA), any(n.op is Ops.ADD and n.dtype.is_float for n in ast.toposort())) == (2, False)
    ast = after("lower_reduces", only(reduce_axes(elementwise(Ops.ADD, one, X), Ops.ADD, (1,))), "")
    assert count(ast, Ops.FMA) == 0  # one product and a number: as it was written


def test_what_the_user_wrote_as_two_ops_stays_two() -> None:
    ast = only(elementwise(Ops.ADD, elementwise(Ops.MUL, X, data(1, 6, 32)), data(2, 6, 32)))
    assert count(after("lower_index", ast), Ops.FMA) == 0


def test_the_largest_of_several_is_a_tree() -> None:
    """A chain of eight waits eight times: maximum, comparison, mask."""
    ast = after("lower_reduces", only(reduce_axes(X, Ops.MAX, (1,))), "unroll k0 8")
    order = [n for n in ast.toposort() if n.op is Ops.MAX]
    depth: dict[UOp, int] = {}
    for node in order:
        depth[node] = 1 + max(depth.get(s, 0) for s in node.src)
    assert (len(order), max(depth.values())) == (8, 4)
    assert count(ast, Ops.CARRY) == 1


def test_a_masked_product_stays_fused() -> None:
    """Both factors are 0 outside of the mask, and so is the product: no select is needed around the sum."""
    ast = after("lower_reduces", only(matmul(data(0, 6, 40), data(1, 40, 20))), "vectorize k0 16")
    assert count(ast, Ops.FMA) > 0


def test_a_mask_keeps_the_old_value() -> None:
    """A largest element: what lies behind the end must not count as 0."""
    ast = after("lower_reduces", only(reduce_axes(data(0, 6, 19), Ops.MAX, (1,))), "vectorize k0 16")
    assert any(n.op is Ops.WHERE and n.dtype.lanes == 16 for n in ast.toposort())


def test_zeros_of_a_padding_are_summed() -> None:
    ast = after("lower_reduces", only(total(pad(X, ((0, 0), (1, 1))), 1)), "")
    assert count(ast, Ops.SET) == 1


# --- long sums
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
    monkeypatch.setattr(lower_reduces, "_BLOCK", block)
    monkeypatch.setattr(lower_reduces, "_MOST_SUMS", 99)
    for device in ("PYTHON", "LLVM"):
        close(run_on(device, ast, arrays, []), want)
        close(run_on(device, ast, arrays), want)
