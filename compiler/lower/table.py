"""What is made of four bits of one byte by several steps is looked up: sixteen bytes are one register.

When: after dot. Why there: what was done to four products is done once to all of them. Assumes: nothing. Guarantees:
a TABLE gives the byte that the steps gave, for each of the sixteen numbers that its source may be; steps that other
values need as well stay. Tests: tests/compiler/lower/test_table.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernmill.ir import Ops, Target, UOp, apply_op, dtypes

__all__ = ["find_tables"]

_SIZE = 16  # bytes of a table, and the least vector that a lookup gives
_STEPS = 4  # from which on a lookup is fewer instructions


def find_tables(ast: UOp, target: Target) -> UOp:
    """The kernel with TABLE in place of choices between numbers."""
    order = ast.toposort() if target.table_lanes else []
    if not any(node.op is Ops.WHERE for node in order):
        return ast
    sources = _sources(order, target.table_lanes)
    inside = {s for node in sources for s in node.src if sources.get(s) is sources[node]}
    done: dict[UOp, UOp] = {}
    for node in order:
        src = tuple([done[s] for s in node.src])
        done[node] = node if src == node.src else node.replace(src=src)
        if node in sources and node not in inside and node.dtype.size_bytes == node.dtype.lanes:
            steps = [s for s in node.toposort() if sources.get(s) is sources[node]]
            if len(steps) > _STEPS:
                table = tuple([_value(steps, code) for code in range(_SIZE)])
                done[node] = UOp(Ops.TABLE, node.dtype, (done[steps[0]],), table)
    return done[ast]


def _sources(order: Sequence[UOp], lanes: int) -> dict[UOp, UOp]:
    """What each value is made of alone, besides numbers: a byte below the size of a table."""
    sources: dict[UOp, UOp] = {}
    for node in order:
        made_of = {sources.get(s) for s in node.src if not _is_number(s)}
        (source,) = made_of if len(made_of) == 1 else (None,)
        is_byte = node.dtype.scalar is dtypes.uint8 and not node.is_const
        if source is None and is_byte and node.bounds[0] >= 0 and node.bounds[1] < _SIZE:
            source = node
        if source is not None and node.op.is_elementwise and _SIZE <= node.dtype.lanes <= lanes:
            sources[node] = source
    return sources


def _is_number(u: UOp) -> bool:
    """One, in all lanes."""
    return u.is_const and not isinstance(u.arg, tuple)


def _value(steps: Sequence[UOp], code: int) -> Any:
    """What the steps make of one number."""
    known: dict[UOp, Any] = {steps[0]: code}
    for step in steps[1:]:
        known[step] = apply_op(step, tuple([known.get(s, s.arg) for s in step.src]))
    return known[steps[-1]]
