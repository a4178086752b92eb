"""Accumulators: REG, CARRY, SET, AFTER; fused products; masks."""

from __future__ import annotations

import pytest

from kernmill.ir import Op, Ops, UOp, elementwise, pad, reduce_axes
from tests.compiler.kernels import (
    SCALARS,
    data,
    matmul,
    only,
    small_kernels,
    total,
)  # fmt: skip
from tests.compiler.passes import after

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
