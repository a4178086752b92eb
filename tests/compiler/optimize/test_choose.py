"""The list of strategies: who makes the schedule of which kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernmill.compiler import STRATEGIES, analyze, choose, merge_loops
from kernmill.ir import Target, UOp
from tests.compiler.kernels import SCALARS, VECTORS, attention, data, matmul, only, softmax
from tests.compiler.tiles import I8, TILES, U8, product

PRODUCT = merge_loops(only(matmul(data(0, 64, 64), data(1, 64, 64))))
BYTES = product((64, 64, 64), (U8, I8))
ATTENTION = merge_loops(only(attention(data(0, 40, 4), data(1, 64, 4), data(2, 64, 4))))
VNNI = replace(VECTORS, dots=frozenset({(U8, I8)}))
GROUPS = replace(VECTORS, group_items=256, has_threads=False)


def strategy_of(ast: UOp, target: Target) -> str:
    facts = analyze(ast, target)
    return next(one.schedule.__name__ for one in STRATEGIES if one.applies(facts) and one.schedule(facts) is not None)


@pytest.mark.parametrize(
    ("ast", "target", "name"),
    [
        (PRODUCT, GROUPS, "gpu_schedule"),
        (BYTES, TILES, "unit_schedule"),
        (ATTENTION, VECTORS, "rows_schedule"),
        (BYTES, VNNI, "dot_schedule"),
        (merge_loops(only(matmul(data(0, 4, 4096), data(1, 4096, 4096)))), VECTORS, "few_rows_schedule"),
        (PRODUCT, VECTORS, "loops_schedule"),
        (merge_loops(only(softmax(data(0, 64, 512)))), VECTORS, "loops_schedule"),
        (PRODUCT, SCALARS, "scalar_schedule"),
    ],
)
def test_the_first_that_fits_decides(ast: UOp, target: Target, name: str) -> None:
    assert strategy_of(ast, target) == name


def test_every_strategy_says_why_it_stands_there() -> None:
    names = [one.schedule.__name__ for one in STRATEGIES]
    assert len(set(names)) == len(names)
    assert all(len(one.why.split()) > 4 and not one.why.endswith(".") for one in STRATEGIES)


def test_threads_share_whole_rows_where_rows_are_kept() -> None:
    threaded = replace(VECTORS, has_threads=True)
    schedule = choose(ATTENTION, threaded)
    shared = [action.args[0] for action in schedule.actions if action.verb == "thread"]
    assert set(shared) <= set(analyze(ATTENTION, threaded).row_loops)
