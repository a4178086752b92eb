"""VECTOR loops become vector values: plain, gathered, masked, folded."""

from __future__ import annotations

import pytest

from kernmill.ir import AxisKind, Ops, UOp, broadcast_to, dtypes, elementwise, permute, reduce_axes, reshape, take
from tests.compiler.kernels import data, only, total
from tests.compiler.passes import after

X = data(0, 6, 32)


def nodes(ast: UOp, op: object) -> list[UOp]:
    return [node for node in ast.toposort() if node.op is op]


def lanes(ast: UOp, op: object) -> list[int]:
    return [node.dtype.lanes for node in nodes(ast, op)]


def test_side_by_side_is_one_load_and_one_store() -> None:
    ast = after("vectorize", only(X + 1.0), "vectorize i0 16")
    assert lanes(ast, Ops.LOAD) == [16]
    assert all(node.src[1].dtype.lanes == 1 for node in nodes(ast, Ops.INDEX))
    assert not any(node.arg[1] == AxisKind.VECTOR for node in nodes(ast, Ops.RANGE))


def test_a_value_of_all_lanes_is_broadcast() -> None:
    ast = after("vectorize", only(elementwise(Ops.MUL, X, broadcast_to(data(1, 6, 1), (6, 32)))), "vectorize i1 16")
    assert sorted(lanes(ast, Ops.LOAD)) == [1, 16]
    assert lanes(ast, Ops.BROADCAST) == [16]


def test_far_apart_is_gathered() -> None:
    ast = after("vectorize", only(permute(X, (1, 0)) + 1.0), "vectorize i1 2")
    (load,) = nodes(ast, Ops.LOAD)
    assert load.src[0].src[1].dtype.lanes == 2


def test_a_sum_over_lanes_is_folded_at_the_end() -> None:
    ast = after("vectorize", only(total(X, 1)), "vectorize k0 8")
    (fold,) = nodes(ast, Ops.FOLD)
    assert fold.arg is Ops.ADD
    assert fold.dtype.lanes == 1
    assert fold.src[0].op is Ops.REDUCE
    assert fold.src[0].dtype.lanes == 8


def test_sums_side_by_side_need_no_fold() -> None:
    ast = after("vectorize", only(total(X, 0)), "vectorize i0 16")
    assert not nodes(ast, Ops.FOLD)
    assert lanes(ast, Ops.REDUCE) == [16]


@pytest.mark.parametrize("size", [5, 17, 33])
def test_tails_are_masked(size: int) -> None:
    ast = after("vectorize", only(data(0, size) + 1.0), "vectorize i0 16")
    stores = [node.src[0] for node in nodes(ast, Ops.STORE)]
    assert [place.src[2].dtype.lanes for place in stores if len(place.src) > 2] == [16]
    assert len(stores) == 1 + (size > 16)


def test_bools_and_comparisons_keep_their_lanes() -> None:
    largest = reduce_axes(X, Ops.MAX, (1,))
    ast = after("vectorize", only(elementwise(Ops.LT, X, largest)), "vectorize i1 16; vectorize k0 8")
    assert {n.dtype.name for n in nodes(ast, Ops.LT) if n.src[0].dtype.is_float} == {"boolx16"}


def test_a_place_that_rests_on_a_maximum_over_lanes() -> None:
    """The place kept the loop that the maximum was folded over, and no renderer knew it: v[x.max(1)]."""
    largest = reshape(reduce_axes(data(1, 4, 3, dtype=dtypes.int64), Ops.MAX, (1,)), (4,))
    ast = after("vectorize", only(take(X, largest, 0) + 1.0), "vectorize i1 16; vectorize k0 4")
    assert lanes(ast, Ops.FOLD) == [1]
    assert not any(node.arg[1] == AxisKind.VECTOR for node in nodes(ast, Ops.RANGE))
