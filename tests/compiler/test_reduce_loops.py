"""Idle loops of reductions go; loops are shared only by reductions that stand in the same place."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from kernmill.compiler import KernelInfo
from kernmill.ir import AxisKind, Ops, UOp, closed_ranges, dtypes, index_const, make_range
from tests.compiler.kernels import F32, close, run_ast, small_kernels

tidy: Any = importlib.import_module("kernmill.compiler.reduce_loops").tidy_reduce_loops  # inside the compiler
I0, K0 = make_range("i0", 4, AxisKind.LOOP), make_range("k0", 5, AxisKind.REDUCE)
OUT, IN = UOp(Ops.PARAM, F32, (), (0, 4)), UOp(Ops.PARAM, F32, (), (1, 5))


def load(place: UOp) -> UOp:
    return UOp(Ops.LOAD, F32, (UOp(Ops.INDEX, F32, (IN, place)),))


def reduced(op: object, value: UOp) -> UOp:
    return UOp(Ops.REDUCE, value.dtype, (value, K0), (op, 1))


def kernel(value: UOp) -> UOp:
    store = UOp(Ops.STORE, dtypes.void, (UOp(Ops.INDEX, F32, (OUT, I0)), value))
    return UOp(Ops.SINK, dtypes.void, (store,), KernelInfo("test", ("i0",)))


def arrays() -> list[Any]:
    return [np.zeros(4, np.float32), np.arange(5, dtype=np.float32)]


def reductions(ast: UOp) -> list[UOp]:
    return [node for node in ast.toposort() if node.op is Ops.REDUCE]


def test_a_sum_of_equal_terms_is_a_product() -> None:
    ast = kernel(reduced(Ops.ADD, load(index_const(2))))
    assert reductions(tidy(ast)) == []
    close(run_ast(tidy(ast), arrays()), run_ast(ast, arrays()))


def test_the_largest_of_equal_terms_is_the_term() -> None:
    ast = kernel(reduced(Ops.MAX, load(index_const(2))))
    assert reductions(tidy(ast)) == []
    close(run_ast(tidy(ast), arrays()), run_ast(ast, arrays()))


def test_reductions_in_different_places_have_loops_of_their_own() -> None:
    """One changes with i0 and one does not: a pass over one loop cannot serve both."""
    outside = reduced(Ops.ADD, load(K0))
    inside = reduced(Ops.ADD, load(K0) * I0.cast(F32))
    ast = tidy(kernel(outside + inside))
    first, second = (closed_ranges(node) for node in reductions(ast))
    assert set(first).isdisjoint(second)
    close(run_ast(ast, arrays()), run_ast(kernel(outside + inside), arrays()))


def test_reductions_in_one_place_share() -> None:
    ast = tidy(kernel(reduced(Ops.ADD, load(K0)) + reduced(Ops.MAX, load(K0))))
    first, second = (closed_ranges(node) for node in reductions(ast))
    assert first == second


def test_tidy_kernels_stay_as_they_are() -> None:
    for ast in small_kernels().values():
        assert tidy(ast) is ast
