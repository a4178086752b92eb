"""Sums whose terms name their places: the same sums, in order, by every device; what is refused; when it is chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernmill.compiler import apply_actions, choose, parse_schedule
from kernmill.ir import (
    CompileError,
    DType,
    Op,
    Ops,
    Stage,
    UOp,
    broadcast_to,
    const,
    dtypes,
    elementwise,
    expand,
    iota,
    reduce_axes,
    reshape,
    substitute,
    verify,
)
from tests.compiler.kernels import VECTORS, Array, close, data, inputs, only, params, run_ast, run_on

COUNT = 37


def places(rows: int, size: int, depth: int, op: Op = Ops.ADD, dtype: DType = dtypes.float32) -> UOp:
    """out[r, p, d] = the fold of x[r, n, d] where index[r, n] = p."""
    shape = (rows, size, COUNT, depth)
    index = broadcast_to(reshape(data(1, rows, COUNT, dtype=dtypes.int32), (rows, 1, COUNT, 1)), (rows, size, COUNT, 1))
    own = broadcast_to(reshape(iota(size, dtypes.int32), (1, size, 1, 1)), index.shape)
    hit = expand(elementwise(Ops.EQ, index, own), shape)
    x = expand(reshape(data(0, rows, COUNT, depth, dtype=dtype), (rows, 1, COUNT, depth)), shape)
    unit = {Ops.ADD: 0, Ops.MUL: 1, Ops.MAX: dtype.min}[op]
    return only(reduce_axes(elementwise(Ops.WHERE, hit, x, broadcast_to(const(dtype, unit), shape)), op, (2,)))


def given(ast: UOp, size: int, seed: int = 0) -> list[Array]:
    """Inputs whose index names places twice, none, and some that do not exist."""
    arrays = inputs(ast, seed)
    for number, param in enumerate(params(ast)):
        if param.dtype is dtypes.int32 and param.arg[1] % COUNT == 0 and number:
            arrays[number] = np.random.default_rng(seed).integers(-3, size + 3, param.arg[1]).astype(np.int32)
    return arrays


SCHEDULES = [
    "scatter k0 i1",
    "scatter k0 i1; vectorize i1' 8; thread i0",
    "scatter k0 i1; vectorize i2 4; unroll i2 2; thread i2; order i2 i0 k0",
    "split i2 3; scatter k0 i1; thread i0",
    "vectorize i2 4; unroll i0 2; scatter k0 i1",
    "unroll i2 5; scatter k0 i1; split i1' 3",
    "scatter k0 i1; unroll i0 2",  # the entries past the last row are not read
]


@pytest.mark.parametrize("text", SCHEDULES)
def test_the_sums_are_the_same(device: str, text: str) -> None:
    ast, actions = places(3, 9, 11), parse_schedule(text)
    arrays = given(ast, 9)
    optimized = apply_actions(ast, actions)
    verify(optimized, Stage.OPTIMIZED, text)
    want = run_ast(ast, arrays)
    close(run_ast(optimized, arrays), want)
    if device != "PYTHON" or not {"thread", "vectorize"} & set(text.split()):
        close(run_on(device, ast, arrays, actions), want)


def test_the_old_value_is_read_behind_no_gate() -> None:
    """A mask of one lane for each term took half as long again; where a term goes nowhere another place is read."""
    ast = apply_actions(places(3, 9, 1), parse_schedule("scatter k0 i1"))
    old = [n for n in ast.toposort() if n.op is Ops.LOAD and n.src[0].src[0].op is Ops.CARRY]
    assert [load.src[0].gate for load in old] == [None]
    assert ast.src[0].src[0].gate is not None


@pytest.mark.parametrize("op", [Ops.ADD, Ops.MUL, Ops.MAX], ids=str)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.int32, dtypes.int64, dtypes.uint8], ids=str)
def test_every_fold(device: str, op: Op, dtype: DType) -> None:
    ast = places(2, 70, 1, op, dtype)
    arrays = given(ast, 70)
    got = run_on(device, ast, arrays, parse_schedule("scatter k0 i1"))
    assert np.allclose(got, run_ast(ast, arrays), rtol=1e-5)


def test_terms_are_added_in_their_order(device: str) -> None:
    """1e8 and 1 and -1e8: only in this order 0."""
    ast = places(1, 5, 1)
    arrays = given(ast, 5)
    wide = [number for number, param in enumerate(params(ast)) if param.dtype is dtypes.float32 and number]
    index = next(number for number, param in enumerate(params(ast)) if param.dtype is dtypes.int32)
    arrays[wide[0]][:], arrays[index][:] = 0, 2
    arrays[wide[0]][[1, 7, 20, 30]] = [1e8, 1, -1e8, 1]
    assert run_on(device, ast, arrays, parse_schedule("scatter k0 i0")).tolist() == [0, 0, 1, 0, 0]


@pytest.mark.parametrize(("dtype", "size"), [(dtypes.uint8, 256), (dtypes.int8, 128)], ids=str)
def test_a_type_that_holds_the_last_place_and_not_the_size(device: str, dtype: DType, size: int) -> None:
    own = broadcast_to(reshape(iota(size, dtype), (size, 1)), (size, COUNT))
    index = broadcast_to(reshape(data(1, COUNT, dtype=dtype), (1, COUNT)), own.shape)
    x = broadcast_to(reshape(data(0, COUNT), (1, COUNT)), own.shape)
    hit = elementwise(Ops.EQ, index, own)
    ast = only(reduce_axes(elementwise(Ops.WHERE, hit, x, broadcast_to(const(x.dtype, 0), x.shape)), Ops.ADD, (1,)))
    arrays, param = inputs(ast, 0), next(p for p in params(ast) if p.dtype is dtype)
    numbers = np.random.default_rng(0).integers(0, size, COUNT).astype(arrays[param.arg[0]].dtype)
    arrays[param.arg[0]][:] = numbers
    got = run_on(device, ast, arrays, parse_schedule("scatter k0 i0"))
    want = run_ast(ast, arrays)
    assert np.count_nonzero(want) > COUNT // 2
    close(got, want)


def test_what_else_is_asked_of_a_place_is_asked_of_no_other(device: str) -> None:
    """An index that names no place reads nothing there."""
    size = 50
    own = broadcast_to(reshape(iota(size, dtypes.int32), (size, 1)), (size, COUNT))
    index = broadcast_to(reshape(data(1, COUNT, dtype=dtypes.int32), (1, COUNT)), own.shape)
    level = broadcast_to(reshape(data(2, size), (size, 1)), own.shape)
    x = broadcast_to(reshape(data(0, COUNT), (1, COUNT)), own.shape)
    zero = broadcast_to(const(x.dtype, 0), x.shape)
    hit = elementwise(Ops.AND, elementwise(Ops.EQ, index, own), elementwise(Ops.LT, zero, level))
    ast = only(reduce_axes(elementwise(Ops.WHERE, hit, x, zero), Ops.ADD, (1,)))
    arrays, param = inputs(ast, 0), next(p for p in params(ast) if p.dtype is dtypes.int32)
    arrays[param.arg[0]][:] = np.random.default_rng(0).integers(0, size, COUNT)
    arrays[param.arg[0]][:4] = [-1, size, -(2**31), 2**31 - 1]
    close(run_on(device, ast, arrays, parse_schedule("scatter k0 i0")), run_ast(ast, arrays))


@pytest.mark.parametrize(
    "verb", ["vectorize k0 4", "unroll k0 2", "split k0 4", "thread k0", "grid k0", "order k0 i0 i2"]
)
def test_its_loop_is_walked_in_order(verb: str) -> None:
    """Two terms of one place at once would lose one; and places are filled before the first term, not between two."""
    ast = apply_actions(places(3, 9, 11), parse_schedule("scatter k0 i1"))
    with pytest.raises(CompileError, match=r"accumulates over k0|written twice"):
        apply_actions(ast, parse_schedule(verb))


def test_the_items_of_a_group_do_not_fill_its_places() -> None:
    """There is no barrier between the filling and the first term."""
    ast = apply_actions(places(3, 9, 11), parse_schedule("scatter k0 i1"))
    with pytest.raises(CompileError, match="writes shared elements without a barrier"):
        apply_actions(ast, parse_schedule("local i1' 4"))


def test_a_kernel_that_reads_what_its_output_held_is_refused() -> None:
    """The places would be filled before their old values are read."""
    ast = places(3, 9, 11)
    (store,) = ast.src
    old = UOp(Ops.LOAD, store.src[1].dtype, (store.src[0],))
    x = next(node for node in store.src[1].toposort() if node.op is Ops.LOAD and node.dtype is old.dtype)
    held = x.replace(src=(x.src[0].replace(src=(store.src[0].src[0], x.src[0].src[1])),))
    with pytest.raises(CompileError, match="reads the old values of its output"):
        apply_actions(substitute(ast, {x: held}), parse_schedule("scatter k0 i1"))


def test_what_is_no_sum_at_places_is_refused() -> None:
    ast = places(3, 9, 11)
    for text in ("scatter k0 i0", "scatter k0 i2", "scatter i1 k0", "scatter k0 i1; scatter k0 i0"):
        with pytest.raises(CompileError, match="scatter"):
            apply_actions(ast, parse_schedule(text))
    plain = only(reduce_axes(data(0, 9, 20), Ops.ADD, (1,)))
    with pytest.raises(CompileError, match="the terms of k0 contain no index into i0"):
        apply_actions(plain, parse_schedule("scatter k0 i0"))


def test_when_it_is_chosen() -> None:
    def verbs(size: int, depth: int) -> list[str]:
        return [action.verb for action in choose(places(4, size, depth), VECTORS).actions]

    assert verbs(1000, 1) == ["scatter", "vectorize", "thread"]
    assert verbs(1000, 16) == ["scatter", "vectorize", "thread"]
    assert "scatter" not in verbs(16, 1)  # one vector of places is compared at once
    items = replace(VECTORS, group_items=256)
    assert "scatter" not in [action.verb for action in choose(places(4, 1000, 1), items).actions]
