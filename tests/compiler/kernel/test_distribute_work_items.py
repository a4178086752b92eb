"""Groups of work-items: random schedules mean the same."""

from __future__ import annotations

import random

import pytest

from kernmill.compiler import merge_loops, parse_schedule
from kernmill.ir import CompileError, Context, Ops, UOp, assign, broadcast_to, elementwise
from kernmill.runtime import get_device
from tests.compiler.kernels import (
    close,
    data,
    inputs,
    kernels,
    lowered,
    matmul,
    only,
    params,
    run_ast,
    run_uops,
    scheduled,
    small_kernels,
    softmax,
    total,
)

TILE = (
    "unroll i1 2; local i1 4; unroll i0 2; local i0 4; split k0 8; stage 1 k0.s i0.l i0.u; stage 2 k0.s i1.l i1.u; "
    "grid i0 i1"
)
PRODUCT = merge_loops(only(matmul(data(0, 18, 21), data(1, 21, 19))))
SOFTMAX = merge_loops(only(softmax(data(0, 6, 40))))


def for_items(ast: UOp, schedule: str) -> list[UOp]:
    with Context(TARGET="gpu"):
        return lowered(ast, get_device("PYTHON").target, parse_schedule(schedule), is_checked=True)


def run(ast: UOp, uops: list[UOp], seed: int = 1) -> None:
    arrays = inputs(ast, seed)
    with Context(TARGET="gpu"):
        close(run_uops("PYTHON", uops, arrays, params(ast)), run_ast(ast, arrays))


SCHEDULES = {
    "row_sum": ["share k0 16; grid i0", "local i0 4; share k0 8; grid i0", "share k0 64", "rfactor k0 2; share k0 4"],
    "column_sum": ["local i0 8; share k0 4; grid i0", "unroll i0 4; share k0 2", "local i0 32; share k0 2"],
    "all": ["share k0 32", "split k0 8; share k0 4", "share k0 4; unroll k0 2"],
    "row_max": ["share k0 8; unroll i0 2; grid i0"],
    "int_sum": ["share k0 32; grid i0"],
    "any": ["local i0 2; share k0 4; grid i0"],
    "map": ["local i0 32; grid i0", "unroll i0 2; local i0 16; grid i0"],
    "transpose": ["local i0 8; local i1 4; stage 1 i0.l i1.l; grid i0 i1"],
    "softmax": ["share k0 16; share k1 8; local i1 16; grid i0", "share k0 4; share k1 4; local i1 4"],
    "layer_norm": ["share k0 16; share k1 16; local i1 8; grid i0"],
    "attention": [
        "local t0_0 16; local t1_0 16; share t0_0.r 16; share t1_0.r 16; local i1 8; grid i0",
        "local i0 8; grid i0",
        "local t1_0 8; local i1 2; share t1_0.r 8; grid i0",
    ],
    "matmul": [
        "unroll i1 2; local i1 4; unroll i0 2; local i0 2; stage 1 k0 i0.l i0.u; stage 2 k0 i1.l i1.u; grid i0 i1",
        "local i0 2; local i1 4; share k0 4; grid i0 i1",
        "local i0 2; local i1 4; split k0 4; stage 1 k0.s; grid i0 i1",
        "local i0 32; share k0 4",  # the loop that is left stood inside that of the items, and what they share in both
    ],
}


@pytest.mark.parametrize(("name", "schedule"), [(name, text) for name, texts in SCHEDULES.items() for text in texts])
def test_groups_keep_the_meaning(name: str, schedule: str) -> None:
    ast = merge_loops(small_kernels()[name])
    run(ast, for_items(ast, schedule))


@pytest.mark.parametrize("schedule", [TILE, TILE.replace("unroll i1 2; local i1 4", "local i1 4; unroll i1 2")])
def test_a_tile_whose_sizes_nothing_divides(schedule: str) -> None:
    run(PRODUCT, for_items(PRODUCT, schedule))


def test_what_is_written_is_not_read_by_items_past_the_end() -> None:
    """They computed the last result again, from a place that its owner was writing."""
    x = data(0, 6, 8)
    schedule = scheduled(
        assign(x, elementwise(Ops.ADD, x, broadcast_to(total(data(1, 6, 40), 1), (6, 8)))), in_place=[0]
    )
    (kernel,) = kernels(schedule)
    ast = merge_loops(kernel.ast)
    uops = for_items(ast, "local i1 16; unroll i0 4")
    (written,) = {u.src[0].src[0] for u in uops if u.op is Ops.STORE}
    places = [u.src[0] for u in uops if u.op is Ops.LOAD and u.src[0].src[0] is written]
    assert places
    assert all(len(place.src) == 3 for place in places)
    run(ast, uops)


def test_one_item_stores_what_all_compute() -> None:
    """A total that goes to memory in place: the others must not read it when it is there."""
    leaf = data(0, 1)
    ast = kernels(scheduled(assign(leaf, elementwise(Ops.ADD, leaf, total(data(1, 64), 0))), in_place=[0]))[0].ast
    run(ast, for_items(ast, "share k0 16"))


WRONG = {
    "local k0 4": "`share` spreads a reduction over work-items",
    "share i0 4": "i0 is a loop of kind loop",
    "share k0 3": "3 partial sums: must be a power of two",
    "thread i0; local i0 4": "is a reduction loop or parallelized over threads",
    "share k0 4; local i0 4": "each work-item would need a separate buffer; name the loop of the work-items in `stage`",
}


@pytest.mark.parametrize("schedule", WRONG)
def test_what_does_not_fit_is_said(schedule: str) -> None:
    with pytest.raises(CompileError) as error:
        for_items(PRODUCT, schedule)
    assert WRONG[schedule] in str(error.value)


def test_memory_that_items_fill_together_is_the_same_for_all() -> None:
    ast = merge_loops(small_kernels()["attention"])
    with pytest.raises(CompileError, match="each work-item would need a separate buffer"):
        for_items(ast, "local i0 4; local t1_0 4")


@pytest.mark.parametrize("seed", range(30))
def test_random_tiles(seed: int) -> None:
    rng = random.Random(seed)
    rows, inner, columns = (rng.randint(9, 24) for _ in range(3))
    ast = merge_loops(only(matmul(data(0, rows, inner), data(1, inner, columns))))
    items, tile = rng.choice([(2, 2), (4, 2), (2, 4), (4, 1)])
    cuts = []
    for loop in ("i0", "i1"):
        parts = [f"local {loop} {items}", *([f"unroll {loop} {tile}"] if tile > 1 else [])]
        rng.shuffle(parts)
        cuts += parts
    block = rng.choice([2, 3, 4])
    own = ["l", "u"] if tile > 1 else ["l"]
    stages = []
    for slot, loop in ((1, "i0"), (2, "i1")):
        names = ["k0.s", *(f"{loop}.{one}" for one in own)]
        rng.shuffle(names)
        stages.append(f"stage {slot} {' '.join(names)}")
    picked = rng.sample(stages, rng.randint(0, 2))
    schedule = "; ".join([*cuts, f"split k0 {block}", *picked, "grid i0 i1"])
    run(ast, for_items(ast, schedule), seed)
