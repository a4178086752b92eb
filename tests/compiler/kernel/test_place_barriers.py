"""Barriers: they are where they must be, and where all work-items come by."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest

from kernmill.compiler import place_barriers
from kernmill.ir import AxisKind, CompileError, InternalError, Ops, UOp
from tests.compiler.kernel.test_distribute_work_items import PRODUCT, SCHEDULES, SOFTMAX, TILE, for_items, run


def barriers(uops: list[UOp]) -> list[int]:
    return [at for at, u in enumerate(uops) if u.op is Ops.BARRIER]


def test_a_block_of_terms_waits_twice() -> None:
    uops = for_items(PRODUCT, TILE)
    assert len(barriers(uops)) == 2
    depth = [sum((u.op is Ops.RANGE) - (u.op is Ops.END) for u in uops[:at]) for at in barriers(uops)]
    assert depth == [4, 4]  # i0, i1, item, k0


@pytest.mark.parametrize(
    ("ast", "schedule"), [(PRODUCT, TILE), (SOFTMAX, SCHEDULES["softmax"][0])], ids=["tile", "rows"]
)
def test_no_barrier_is_idle(ast: UOp, schedule: str) -> None:
    """PYTHON runs the items of a group there and back: without one of the barriers it goes wrong."""
    uops = for_items(ast, schedule)
    for at in barriers(uops):
        with pytest.raises((AssertionError, TypeError)):
            run(ast, [u for n, u in enumerate(uops) if n != at])


def test_a_barrier_that_some_pass_by_is_found() -> None:
    def work(group: int, me: int, shared: dict[int, list[int]]) -> Iterator[None]:
        if me < 2:
            yield
        yield

    with pytest.raises(InternalError, match="a barrier of group 0 is reached by 2 of 3 work-items"):
        importlib.import_module("kernmill.runtime.ops_python").together(work, 1, 3)


def test_shared_memory_in_a_loop_that_not_all_run_alike_is_refused() -> None:
    uops = for_items(PRODUCT, TILE)
    item = next(u for u in uops if u.op is Ops.RANGE and u.arg == ("item", AxisKind.LOCAL))
    larger = UOp(Ops.RANGE, item.dtype, (item.src[0].replace(arg=32),), ("more", AxisKind.LOCAL))
    end = UOp(Ops.END, uops[-1].dtype, (larger,))
    with pytest.raises(CompileError, match="share memory inside the loop item, which not all run alike"):
        place_barriers([u for u in (larger.src[0], *uops, larger, end) if u.op is not Ops.BARRIER])
