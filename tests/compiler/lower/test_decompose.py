"""What a target lacks is written in what it has, with the same meaning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernmill.compiler import PIPELINE
from kernmill.ir import DType, Op, Ops, Target, UOp, dtypes, elementwise, evaluate
from kernmill.renderers import LLVM_OPS
from tests.compiler.kernels import VECTORS, numpy_name

Array = np.ndarray[Any, Any]
(decompose,) = [step.run for step in PIPELINE if step.name == "decompose"]
POOR = Target("poor", ops=LLVM_OPS - {Ops.NEG, Ops.ABS, Ops.FMA, Ops.MAX, Ops.MIN})
HERE = Target("here", ops=LLVM_OPS)


def leaf(dtype: DType, slot: int) -> UOp:
    return UOp(Ops.PARAM, dtype, (), (slot, 1))


def corners(dtype: DType) -> Array:
    if dtype.is_bool:
        return np.array([False, True])
    if dtype.is_float:
        return np.array([0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan, 3e-40, 100.0], numpy_name(dtype))
    return np.array([dtype.min, dtype.min + 1, 0, 1, 5, 31, dtype.max - 1, dtype.max], dtype.name)


def check(op: Op, dtype: DType, target: Target) -> None:
    leaves = [leaf(dtype, n) for n in range(op.arity or 0)]
    root = leaves[0].alu(op, *leaves[1:])
    lowered = decompose(root, target)
    legal = target.ops | {Ops.PARAM, Ops.CONST, Ops.CAST, Ops.BITCAST, Ops.WHERE}
    assert {node.op for node in lowered.toposort()} <= legal
    grids = np.meshgrid(*[corners(dtype)] * len(leaves), indexing="ij")
    given = {leaf: grid.reshape(-1) for leaf, grid in zip(leaves, grids, strict=True)}
    got, want = evaluate(lowered, given), evaluate(root, given)
    np.testing.assert_array_equal(got, want)
    if op in (Ops.NEG, Ops.ABS) and dtype.is_float:
        number = want == want
        np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])


BASICS = [Ops.MAX, Ops.MIN, Ops.NEG, Ops.ABS]


@pytest.mark.parametrize("dtype", [d for d in dtypes.data if d not in (dtypes.bfloat16, dtypes.float16)], ids=str)
@pytest.mark.parametrize("op", BASICS, ids=str)
def test_basics(op: Op, dtype: DType) -> None:
    if not (dtype.is_bool and op in (Ops.NEG, Ops.ABS)):
        check(op, dtype, POOR)


@pytest.mark.parametrize("dtype", [d for d in dtypes.data if d.is_int], ids=str)
@pytest.mark.parametrize("op", [Ops.SHL, Ops.SHR], ids=str)
def test_shifts_outside_of_the_word(op: Op, dtype: DType) -> None:
    """They once were decomposed for ever. A negative number shifted right by a negative amount is -1, as in NumPy."""
    check(op, dtype, HERE)


def test_a_shift_that_stays_inside_is_left_alone() -> None:
    x = leaf(dtypes.int32, 0)
    assert decompose(x << 3, HERE) is x << 3
    inside = x << (x & 31)
    assert decompose(inside, HERE) is inside


def test_fma_of_ints_is_two_ops() -> None:
    x = leaf(dtypes.int32, 0)
    assert decompose(x.alu(Ops.FMA, x, x), HERE) is x * x + x
    assert (
        decompose(x.cast(dtypes.float32).alu(Ops.FMA, x.cast(dtypes.float32), x.cast(dtypes.float32)), POOR).op
        is Ops.ADD
    )


@pytest.mark.parametrize("op", [op for op in Ops.rows() if op.is_elementwise], ids=str)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int16, dtypes.bfloat16], ids=str)
def test_nothing_is_left_that_the_target_lacks(op: Op, dtype: DType) -> None:
    floats_only = op in (Ops.EXP, Ops.EXP2, Ops.LOG, Ops.LOG2, Ops.SIN, Ops.COS, Ops.TANH, Ops.ERF, Ops.SQRT, Ops.DIV,
                         Ops.SCALE)  # fmt: skip
    ints_only = op in (Ops.AND, Ops.OR, Ops.XOR, Ops.SHL, Ops.SHR, Ops.CDIV, Ops.CMOD)
    is_narrow = op is Ops.SCALE and dtype.bits < 32  # what is computed of 16 bits is widened first
    if is_narrow or (floats_only and dtype.is_int) or (ints_only and dtype.is_float):
        pytest.skip(f"{op} is not of {dtype}")
    if op is Ops.BITCAST:
        root = leaf(dtype, 0).bitcast(dtypes.uint16 if dtype.bits == 16 else dtypes.int32)
    elif op is Ops.CAST:
        root = leaf(dtype, 0).cast(dtypes.float64)
    elif op is Ops.WHERE:
        root = leaf(dtypes.bool, 2).where(leaf(dtype, 0), leaf(dtype, 1))
    else:
        root = elementwise(op, *(leaf(dtype, n) for n in range(op.arity or 0)))
    for target in (VECTORS, POOR):
        lowered = decompose(root, target)
        assert {n.op for n in lowered.toposort() if n.op.is_elementwise} <= target.ops


@pytest.mark.parametrize("lanes", [1, 8, 16, 32])
def test_a_scale_is_left_where_it_fills_a_register(lanes: int) -> None:
    """The instruction is for whole registers; in steps it is the same to the bit."""
    dtype = dtypes.float32.vec(lanes)
    root = leaf(dtype, 0).alu(Ops.EXP)
    target = replace(VECTORS, ops=VECTORS.ops | {Ops.SCALE})
    found = {n.op for n in decompose(root, target).toposort()}
    assert (Ops.SCALE in found) == (lanes == 16)
    assert Ops.SCALE not in {n.op for n in decompose(root, VECTORS).toposort()}


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_a_scale_in_steps_is_rounded_once(dtype: DType) -> None:
    most = 2 * int(np.finfo(dtype.name).maxexp) - 2
    values, by = (a.ravel() for a in np.meshgrid([0.7, 1.0, -1.3, np.nan], np.arange(-most, most + 1)))
    given = {leaf(dtype, 0): values.astype(dtype.name), leaf(dtype, 1): by.astype(dtype.name)}
    lowered = decompose(leaf(dtype, 0).alu(Ops.SCALE, leaf(dtype, 1)), HERE)
    with np.errstate(all="ignore"):
        want = np.ldexp(given[leaf(dtype, 0)], by.astype(np.int32))
    np.testing.assert_array_equal(evaluate(lowered, given), want)


def test_vectors_are_decomposed_like_scalars() -> None:
    wide = dtypes.float32.vec(8)
    memory = UOp(Ops.PARAM, dtypes.float32, (), (0, 8))
    x = UOp(Ops.LOAD, wide, (UOp(Ops.INDEX, wide, (memory, UOp(Ops.CONST, dtypes.index, (), 0))),))
    lowered = decompose(x.alu(Ops.MAX, x.alu(Ops.EXP)), VECTORS)
    assert {n.dtype.lanes for n in lowered.toposort() if n.op.is_elementwise} == {8}


@pytest.mark.parametrize("lanes", [2, 4, 16])
@pytest.mark.parametrize(("op", "dtype", "is_left"), [
    (Ops.ADD, dtypes.float32, False), (Ops.MAX, dtypes.float32, False), (Ops.ADD, dtypes.int32, True),
    (Ops.MIN, dtypes.int8, False), (Ops.OR, dtypes.bool, False), (Ops.MAX, dtypes.bool, False),
])  # fmt: skip
def test_lanes_are_folded_by_halves(op: Op, dtype: DType, is_left: bool, lanes: int) -> None:
    """The ladder of an int sum is LLVM's own: it lost terms of products of bytes in one of shuffles."""
    root = UOp(Ops.FOLD, dtype, (UOp(Ops.PARAM, dtype.vec(lanes), (), (0, 1)),), op)
    for target, has_fold in ((HERE, is_left), (Target("none", ops=LLVM_OPS - {Ops.FOLD}), False)):
        found = [node.op for node in decompose(root, target).toposort()]
        assert (Ops.FOLD in found) == has_fold
        assert found.count(Ops.SHUFFLE) == (0 if has_fold else 2 * lanes.bit_length() - 3)
