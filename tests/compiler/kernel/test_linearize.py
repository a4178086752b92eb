"""From a graph to a list: loops nest, everything stands before its use and outside every loop it does not need."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from kernmill import Tensor
from kernmill.compiler import linearize, loop_depths, loop_paths, merge_loops, parse_schedule
from kernmill.ir import CompileError, Ops, Stage, UOp, dtypes, elementwise, linear, shrink, take, verify
from tests.compiler.kernels import (
    SCALARS,
    VECTORS,
    attention,
    data,
    lowered,
    matmul,
    only,
    small_kernels,
    softmax,
    total,
)
from tests.compiler.passes import after

KERNELS = small_kernels()


def depths(uops: list[UOp]) -> dict[UOp, int]:
    depth, found = 0, {}
    for u in uops:
        if u.op is Ops.END:
            depth -= 1
        found[u] = depth
        if u.op is Ops.RANGE:
            depth += 1
    assert depth == 0
    return found


@pytest.mark.parametrize("target", [SCALARS, VECTORS], ids=["scalars", "vectors"])
@pytest.mark.parametrize("name", KERNELS)
def test_the_list_is_legal(name: str, target: object) -> None:
    uops = lowered(KERNELS[name], SCALARS if target is SCALARS else VECTORS, is_checked=True)
    verify(uops, Stage.LINEAR, "linearize")
    place = {u: n for n, u in enumerate(uops)}
    open_loops: list[UOp] = []
    for u in uops:
        assert all(place[s] < place[u] for s in u.src)
        if u.op is Ops.RANGE:
            open_loops.append(u)
        elif u.op is Ops.END:
            assert open_loops.pop() is u.src[0]
        else:
            assert u.ranges <= set(open_loops), f"{u} stands outside of a loop that it changes with"
            assert not u.ranges or open_loops[-1] in u.ranges, f"{u} stands in a loop that it does not need"


def test_what_does_not_change_with_the_inner_loop_stands_outside() -> None:
    ast = only(elementwise(Ops.MUL, data(0, 6, 8), data(1, 6, 1).alu(Ops.EXP).alu(Ops.SQRT)))
    found = depths(lowered(ast, SCALARS))
    assert {found[u] for u in found if u.op in (Ops.EXP, Ops.SQRT)} == {1}
    assert {found[u] for u in found if u.op is Ops.MUL and u.dtype.is_float} == {2}


def test_a_schedule_whose_loops_do_not_nest_is_refused_by_a_sentence() -> None:
    """Once an internal error, which stopped a program where the heuristic had chosen it."""
    ast = merge_loops(only(attention(data(0, 64, 8), data(1, 64, 8), data(2, 64, 8), True)))
    with pytest.raises(CompileError, match=r"two reductions share k3 but end up in different loops\. Split the loops"):
        lowered(ast, VECTORS, parse_schedule("unroll i0 5; vectorize t1_0 8"))


def test_accumulators_start_outside_their_loop_and_end_behind_it() -> None:
    uops = lowered(only(total(data(0, 6, 8), 1)), SCALARS)
    found = depths(uops)
    order = [u.op for u in uops if u.op in (Ops.REG, Ops.RANGE, Ops.SET, Ops.END, Ops.STORE)]
    assert order == [Ops.RANGE, Ops.REG, Ops.RANGE, Ops.SET, Ops.END, Ops.STORE, Ops.END]
    assert {found[u] for u in uops if u.op is Ops.STORE} == {1}


def test_reductions_over_the_same_loop_share_it() -> None:
    x = data(0, 6, 8)
    uops = lowered(only(elementwise(Ops.ADD, total(x, 1), total(elementwise(Ops.MUL, x, x), 1))), SCALARS)
    assert sum(u.op is Ops.RANGE for u in uops) == 2
    assert sum(u.op is Ops.LOAD for u in uops) == 1


def test_a_reduction_that_needs_another_comes_behind_it() -> None:
    loops = [str(u.arg[0]) for u in lowered(only(softmax(data(0, 6, 8))), SCALARS) if u.op is Ops.RANGE]
    assert loops == ["i0", "k0", "k1", "i1"] or len(loops) == 4


def test_output_loops_are_nested_as_ordered() -> None:
    ast = after("lower_index", only(matmul(data(0, 6, 9), data(1, 9, 8))), "order i1 i0", SCALARS)
    assert [u.arg[0] for u in linearize(ast) if u.op is Ops.RANGE] == ["i1", "i0", "k0"]
    paths = loop_paths(ast)
    assert sorted(loop_depths(ast).values()) == [1, 2, 3]
    for outer, inner in pairwise(sorted(paths.values(), key=len)):
        assert inner[: len(outer)] == outer


def test_addresses_are_computed_in_outer_loops() -> None:
    """In the innermost loop at most one step is added to each address."""
    found = depths(lowered(only(matmul(data(0, 6, 9), data(1, 9, 8))), SCALARS))
    inner = [u for u in found if found[u] == 3 and u.op in (Ops.ADD, Ops.MUL) and u.dtype.is_int]
    assert len(inner) <= 4


def test_a_tile_loads_before_it_computes() -> None:
    uops = lowered(
        only(matmul(data(0, 8, 9), data(1, 9, 32))),
        VECTORS,
        parse_schedule("vectorize i1 16; unroll i1 2; unroll i0 4"),
    )
    ops = [u.op for u in uops if u.op in (Ops.LOAD, Ops.FMA)]
    assert ops[0] is Ops.LOAD
    assert ops.count(Ops.LOAD) == 6
    assert ops.count(Ops.FMA) == 8


def test_copies_of_a_long_chain_stand_side_by_side() -> None:
    """The list goes from copy to copy at every step, not once; matrix tiles stay as they are."""
    ast = only(data(0, 1024).alu(Ops.TANH))
    switches = []
    for target in (replace(VECTORS, vector_registers=0), VECTORS):
        uops = lowered(ast, target, parse_schedule("vectorize i0 16; unroll i0 2"))
        first = next(u for u in uops if u.op is Ops.LOAD)
        steps = [first in u.toposort() for u in uops if u.dtype.lanes > 1 and u.op not in (Ops.CONST, Ops.STORE)]
        switches.append(sum(a is not b for a, b in pairwise(steps)))
    assert switches[0] <= 5
    assert switches[1] > 20
    product = after(
        "lower_index", only(matmul(data(0, 8, 64), data(1, 64, 32))), "vectorize i1 16; unroll i0 8", VECTORS
    )
    assert linearize(product, 16) == linearize(product, 0)


def in_order(x: UOp) -> UOp:
    """The second quarter of each row by the fourth and the third, less the first."""
    first, second, third, fourth = (shrink(x, ((0, 8192), (n, n + 16))) for n in (0, 16, 32, 48))
    return second * fourth + third - first


@pytest.mark.parametrize("action", ["inorder", "prefetch 4096"])
def test_loads_stand_in_the_order_in_which_they_lie(action: str) -> None:
    """Where they are to; elsewhere in the order in which something is made of them."""
    uops = lowered(only(in_order(data(0, 8192, 64))), VECTORS, parse_schedule(f"vectorize i1 16; {action}"))
    places = [linear(u.src[0].src[1])[1] for u in uops if u.op is Ops.LOAD]
    assert len(places) == 4
    assert (places == sorted(places)) is (action == "inorder")


def test_lines_that_say_where_others_lie_come_first() -> None:
    """Rows at looked-up places have no order: one waited for itself."""
    index, table = data(1, 8192, dtype=dtypes.int64), data(0, 1 << 15, 16)
    ast = only(take(table, take(index, index, 0), 0))
    uops = lowered(ast, VECTORS, parse_schedule("vectorize i1 16; inorder"))
    assert sum(u.op is Ops.LOAD for u in uops) == 3


def test_a_block_whose_vector_steps_can_all_wait() -> None:
    """The widest level of none was asked for: a ValueError in the compiler."""
    x, y = Tensor(np.ones(7), requires_grad=True), Tensor(0.5, requires_grad=True)
    ((x * 2).prod() * y.sin()).backward()
    assert y.grad is not None
    np.testing.assert_allclose(y.grad.numpy(), 2**7 * np.cos(0.5), 1e-6)
