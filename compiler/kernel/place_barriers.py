"""Barriers: wherever a work-item may access what another one wrote, or overwrite what another one reads.

When: on the linear list. Why there: only the list shows what runs between a store and the load that reads it. A loop
whose iterations fill an array again synchronizes twice. Tests: tests/compiler/kernel/test_place_barriers.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from kernmill.ir import AxisKind, CompileError, Ops, UOp, dtypes, memory_of

from .distribute_work_items import is_local

__all__ = ["place_barriers"]

_Touched: TypeAlias = "set[tuple[UOp, bool]]"  # shared arrays; whether they are written


def place_barriers(uops: list[UOp]) -> list[UOp]:
    """Return the list with barriers.

    Raises:
        CompileError: a barrier would be in code that some work-items skip.
    """
    out: list[UOp] = []
    group = max((int(u.src[0].arg) for u in uops if u.op is Ops.RANGE and is_local(u)), default=0)
    if not group:  # no work-items share anything
        return uops
    _walk(uops, group, set(), out)
    return out


def _walk(uops: Sequence[UOp], group: int, before: _Touched, out: list[UOp]) -> None:
    """Process one block; `before` has the accesses since the last barrier, and is updated."""
    for part in _top_level(uops):
        loop, body, mine = part[0], part[1:-1], _touched(part)
        if mine and any(u.op is Ops.RANGE and is_local(u) for u in body):
            if loop.src[0].arg != group if is_local(loop) else any(is_local(r) for r in loop.src[0].ranges):
                raise CompileError(
                    f"the work-items of a group share memory inside the loop {loop.arg[0]}, which not all run alike"
                )
            if loop.arg[1] not in (AxisKind.GLOBAL, AxisKind.LOCAL):  # an iteration comes after another one
                last = set(before)
                _walk(body, group, last, [])
                before |= last
            out.append(loop)
            _walk(body, group, before, out)
            out.append(part[-1])
            continue
        if any(one == other and (is_written or writes) for one, is_written in before for other, writes in mine):
            out.append(UOp(Ops.BARRIER, dtypes.void, (), sum(u.op is Ops.BARRIER for u in out)))
            before.clear()
        before |= mine
        out += part


def _top_level(uops: Sequence[UOp]) -> Iterator[Sequence[UOp]]:
    """Yield each node of a block, a loop with its body as one."""
    start = depth = 0
    for at, u in enumerate(uops):
        depth += (u.op is Ops.RANGE) - (u.op is Ops.END)
        if not depth:
            yield uops[start : at + 1]
            start = at + 1


def _touched(uops: Sequence[UOp]) -> _Touched:
    accesses = [(memory_of(u.src[0]), u.op is Ops.STORE) for u in uops if u.op in (Ops.LOAD, Ops.STORE)]
    return {access for access in accesses if "shared" in access[0].arg}
