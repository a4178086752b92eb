"""Addresses: 64 bits, outer loops first, masks in narrow lanes."""

from __future__ import annotations

import pytest

from kernmill.ir import Ops, UOp, dtypes
from tests.compiler.kernels import SCALARS, data, matmul, only, small_kernels, total
from tests.compiler.passes import after

KERNELS = small_kernels()


@pytest.mark.parametrize("name", KERNELS)
def test_no_symbolic_width_is_left(name: str) -> None:
    for target_ast in (after("lower_index", KERNELS[name]), after("lower_index", KERNELS[name], "", SCALARS)):
        assert not [node for node in target_ast.toposort() if node.dtype.is_index]


def test_sums_are_ordered_from_outer_to_inner_loops() -> None:
    ast = after("lower_index", only(matmul(data(0, 6, 9), data(1, 9, 8))), "", SCALARS)
    depth = {"i0": 1, "i1": 2, "k0": 3}

    def deepest(u: UOp) -> int:
        return max((depth[r.arg[0]] for r in u.ranges), default=0)

    for node in ast.toposort():
        if node.op is Ops.ADD and node.dtype is dtypes.int64 and node.src[1].op is not Ops.CONST:
            assert deepest(node.src[0]) <= deepest(node.src[1])


def test_a_mask_of_lanes_is_compared_in_32_bits() -> None:
    ast = after("lower_index", only(total(data(0, 3, 1000), 1)), "vectorize k0 16")
    masks = [n for n in ast.toposort() if n.op is Ops.LT and n.dtype.lanes == 16]
    assert masks
    assert {n.src[0].dtype.name for n in masks} == {"int32x16"}


def test_constants_come_last() -> None:
    ast = after("lower_index", only(data(0, 6, 9) + 1.0), "unroll i0 3", SCALARS)
    for node in ast.toposort():
        if node.op is Ops.ADD and node.dtype is dtypes.int64:
            assert node.src[0].op is not Ops.CONST
