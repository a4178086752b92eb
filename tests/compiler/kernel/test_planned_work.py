"""What is read off the loops of a kernel before it is lowered: where it can, the counts of the lowered one."""

from __future__ import annotations

import pytest

from kernmill.compiler import (
    Work,
    apply_actions,
    choose,
    kernel_cost,
    optimize_loops,
    parse_schedule,
    planned_ns,
    planned_work,
)
from kernmill.ir import UOp, permute
from tests.compiler.corpus import TARGETS, kernels
from tests.compiler.kernels import VECTORS, data, lowered, matmul, only, total

ZEN4 = TARGETS["zen4"]


def work(root: UOp, schedule: str) -> Work:
    return planned_work(apply_actions(only(root), parse_schedule(schedule)), VECTORS)


def test_a_product_counts_as_its_lowered_kernel_does() -> None:
    found = work(matmul(data(0, 32, 64), data(1, 64, 64)), "vectorize i1 16; unroll i1 2; unroll i0 4; unroll k0 2")
    (body,) = [body for body in found.bodies if body.chain]
    assert (body.fma, body.sums, body.chain, body.trips) == (16, 8, 2, 32)
    assert body.times == 8 * 2 * 32
    assert (body.load, body.shuffle, body.lanes) == (2 * (2 + 4), 0, 0)


def test_partial_sums_shorten_the_chain() -> None:
    one, four = (work(total(data(0, 4096), 0), f"vectorize k0 16; {more} k0 4") for more in ("unroll", "rfactor"))
    assert [max(body.chain for body in found.bodies) for found in (one, four)] == [4, 1]
    assert max(body.shuffle for body in four.bodies) > 0, "the lanes are folded"


def test_lanes_far_apart_are_gathers_or_shuffles() -> None:
    gathered = work(permute(data(0, 64, 64), (1, 0)) * 1.0, "vectorize i1 16")
    assert max(body.lanes for body in gathered.bodies) == 16
    turned = work(permute(data(0, 64, 64), (1, 0)) * 1.0, "vectorize i1 16; unroll i0 16")
    assert max(body.lanes for body in turned.bodies) == 0
    assert max(body.shuffle for body in turned.bodies) == 64, "four steps of sixteen"


def test_a_load_runs_in_all_loops_around_its_innermost() -> None:
    """The panel of a product is read again for each tile of rows."""
    found = work(matmul(data(0, 32, 64), data(1, 64, 64)), "vectorize i1 16; order i1 i0")
    (right,) = [one for one in found.coverages if one.memory.arg[0] == 2]
    assert [str(loop.arg[0]) for loop in right.loops] == ["i1", "i0", "k0", "i1.v"]


@pytest.mark.parametrize("name", ["matmul_256 sum_256x256_k256", "gelu map_4096x4096", "sum sum_64_k64x4096"])
def test_it_is_near_the_estimate_of_the_lowered_kernel(name: str) -> None:
    ast = kernels()[name]
    actions = choose(ast, ZEN4).actions
    whole = kernel_cost(lowered(ast, ZEN4, actions), ZEN4).total_ns
    assert 0.4 < planned_ns(optimize_loops(ast, ZEN4, actions), ZEN4) / whole < 2.5
