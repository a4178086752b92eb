"""Sums of products that fill a matrix unit: found, as loads of whole blocks; what does not fit stays a loop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernmill.compiler import parse_schedule
from kernmill.ir import Context, Ops, UOp, dtypes
from kernmill.renderers import MMA_UNITS
from tests.compiler.kernels import SCALARS, close, inputs, run_ast, run_on
from tests.compiler.passes import after
from tests.compiler.tiles import BF16, CUT, F16, I8, LEFT, RIGHT, TILES, U8, product

PACKED = "; ".join((CUT, RIGHT, LEFT))


def tiles(ast: UOp, schedule: str = PACKED, passed: str = "lower_reduces") -> list[UOp]:
    return [node for node in after(passed, ast, schedule, TILES).toposort() if node.op is Ops.MMA]


def test_blocks_are_one_load_each() -> None:
    found = tiles(product())
    assert len(found) == 4
    assert {node.dtype for node in found} == {dtypes.float32.vec(256)}
    assert {s.op for node in found for s in node.src[:2]} == {Ops.LOAD}
    assert {s.dtype for node in found for s in node.src[:2]} == {BF16.vec(512)}
    assert {node.src[2].op for node in found} == {Ops.CARRY}


def test_a_sum_of_one_step_has_no_loop() -> None:
    found = tiles(product((32, 32, 32)), PACKED.replace("stage 2 k0", "stage 2").replace("stage 1 i0 k0", "stage 1")
                  .replace("order i1 i0 i0.s", "order i0.s"))  # fmt: skip
    assert len(found) == 4
    assert {node.src[2].op for node in found} == {Ops.CONST}


@pytest.mark.parametrize("pair", [(I8, I8), (I8, U8), (U8, I8), (U8, U8)])
def test_bytes_of_any_sign(pair: tuple[object, object]) -> None:
    schedule = PACKED.replace("split k0 32; split k0.s 2", "split k0 64; split k0.s 4")
    found = tiles(product((96, 128, 96), pair), schedule)  # type: ignore[arg-type]
    assert {tuple(s.dtype.scalar for s in node.src) for node in found} == {(*pair, dtypes.int32)}


def test_memory_of_results_keeps_its_type() -> None:
    """Its only reader rounds to bfloat16, but the unit stores float32."""
    ast = product()
    (store,) = ast.src
    half = UOp(Ops.PARAM, BF16, (), store.src[0].src[0].arg)
    place = UOp(Ops.INDEX, BF16, (half, *store.src[0].src[1:]))
    rounded = ast.replace(src=(UOp(Ops.STORE, dtypes.void, (place, store.src[1].cast(BF16))),))
    nodes = after("lower_index", rounded, PACKED, TILES).toposort()
    assert {n.dtype for n in nodes if n.op is Ops.LOCAL and str(n.arg[0]).startswith("tile")} == {dtypes.float32}
    assert sum(n.op is Ops.MMA for n in nodes) == 4


@pytest.mark.parametrize(
    "schedule",
    [
        CUT,  # nothing is packed
        "; ".join((CUT, RIGHT)),
        "; ".join((CUT, LEFT)),
        PACKED.replace("k0.s i1.s' k0.s.s", "k0.s k0.s.s i1.s'"),  # not woven
        PACKED.replace("split k0.s 2", "split k0.s 4"),
        PACKED.replace("split i1 16", "split i1 8"),
        PACKED.replace("tensorize i0.s i1.s", "tensorize i1.s i0.s"),
    ],
)
def test_what_does_not_fit_stays_a_loop(schedule: str) -> None:
    ast = product((64, 64, 96))
    assert not tiles(ast, schedule, "find_mmas")
    arrays = inputs(ast)
    close(run_ast(after("find_mmas", ast, schedule, TILES), arrays), run_ast(ast, arrays))


def test_other_targets_and_types_keep_their_loops() -> None:
    assert not tiles(product(pair=(BF16, F16)), passed="find_mmas")
    only_bytes = replace(TILES, units=tuple(unit for unit in TILES.units if unit.a.is_int))
    assert all(node.op is not Ops.MMA for node in after("find_mmas", product(), PACKED, only_bytes).toposort())


@pytest.mark.parametrize("sizes", [(33, 70, 50), (100, 100, 100)])
def test_tails_are_zeros_while_packing(sizes: tuple[int, int, int]) -> None:
    assert len(tiles(product(sizes), PACKED)) == 4


# --- a unit of several work-items -------------------------------------------------------------------------------------
ITEMS = (
    "split i0 16; split i1 8; split k0 16; split k0.s 2; local i0 2; local i1 2; tensorize i0.s i1.s; unroll i1.s 2; "
    "local i1.s 4; local i0.s 8; unroll i0.s 2; order i0 i1 i0.l i1.l i0.s.l i1.s.l; "
    "stage 2 i1.l k0.s i1.s' k0.s.s; stage 1 i0.l i0.s' k0.s k0.s.s; grid i0 i1"
)
WARP = replace(SCALARS, name="warp", group_items=128, units=MMA_UNITS)


def test_items_of_a_step_do_it_together() -> None:
    ast = product((64, 32, 32), (F16, F16))
    nodes = [node for node in after("lower_reduces", ast, ITEMS, WARP).toposort() if node.op is Ops.MMA]
    assert [(node.arg, node.dtype) for node in nodes] == [((16, 8, 16, 2), dtypes.float32.vec(128))]
    with Context(TARGET="mma"):
        close(run_on("PYTHON", ast, inputs(ast), parse_schedule(ITEMS)), run_ast(ast, inputs(ast)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("i0.s.l i1.s.l", "i1.s.l i0.s.l"),  # the columns would count faster
        ("i0.l i1.l i0.s.l i1.s.l", "i0.s.l i1.s.l i0.l i1.l"),  # 32 items that do not follow each other
        ("unroll i1.s 2; local i1.s 4", "local i1.s 2; unroll i1.s 4"),  # other results than the unit gives to an item
        ("local i0.s 8; unroll i0.s 2", "unroll i0.s 2; local i0.s 8"),
        ("i0.s' k0.s k0.s.s", "k0.s i0.s' k0.s.s"),  # an operand in another order
    ],
)
def test_items_that_hold_something_else_stay_loops(old: str, new: str) -> None:
    """Each of them computes all results then."""
    ast, schedule = product((64, 32, 32), (F16, F16)), ITEMS.replace(old, new)
    assert schedule != ITEMS
    found = [node for node in after("lower_reduces", ast, schedule, WARP).toposort() if node.op is Ops.MMA]
    assert found == []
