"""Table lookup: a function of four bits of a byte, or a byte gather from 256 bytes, becomes a lookup in registers.

When: after find_dots. Why there: operations on four products are merged into one. Assumes: nothing. Guarantees: a TABLE
gives the byte that the operations gave, for each of the sixteen values of its source; operations with other users
remain. Nothing behind a table in memory is read. Tests: tests/compiler/lower/test_lookup_in_registers.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernmill.ir import Ops, Target, UOp, apply_op, const, dtypes, rebuilt, substitute

from ..kernel.shuffle_lanes import entry

__all__ = ["lookup_in_registers"]

_SIZE = 16  # bytes of a table, and the least vector that a lookup gives
_STEPS = 4  # from which on a lookup is fewer instructions


def lookup_in_registers(ast: UOp, target: Target) -> UOp:
    """Return the kernel with TABLE instead of selections between numbers, and of byte gathers from a few registers."""
    ast = rebuilt(ast, lambda _, u: _held(u, target))
    sources = _sources(ast.toposort(), target.table_lanes)
    inside = {s for node in sources for s in node.src if sources.get(s) is sources[node]}
    tables: dict[UOp, UOp] = {}
    for node, source in sources.items():
        steps = [s for s in node.toposort() if sources.get(s) is source] if node not in inside else []
        if len(steps) > _STEPS and node.dtype.scalar in (dtypes.int8, dtypes.uint8):
            table = tuple([_evaluated(steps, code) for code in range(_SIZE)])
            tables[node] = UOp(Ops.TABLE, node.dtype, (source,), table)
    return substitute(ast, tables)


def _held(load: UOp, target: Target) -> UOp:
    """Return a byte gather as a lookup in a table of registers, or in two tables, of which the highest bit of an index
    selects one."""
    kind = load.dtype
    part, registers = target.table_bytes, target.table_bytes // kind.lanes
    found = entry(load) if part and kind.lanes == target.vector_bytes else None
    if found is None or found[1].op is not Ops.PARAM:
        return load
    (indices, memory, first), size = found, found[1].arg[1]
    starts = range(first, first + (int(indices.bounds[1]) // part + 1) * part, kind.lanes)
    if first < 0 or not isinstance(size, int) or starts.stop > size or len(starts) > 2 * registers:
        return load
    held = [UOp(Ops.LOAD, kind, (UOp(Ops.INDEX, kind, (memory, const(dtypes.index, n))),)) for n in starts]
    low, *high = (UOp(Ops.TABLE, kind, (indices, *held[n : n + registers])) for n in range(0, len(held), registers))
    return (indices & part).ne(0).where(high[0], low) if high else low


def _sources(order: Sequence[UOp], lanes: int) -> dict[UOp, UOp]:
    """Return the single source of each value, apart from constants: a byte below the size of a table."""
    sources: dict[UOp, UOp] = {}
    for node in order:
        is_lane_by_lane = all(s.dtype.lanes == node.dtype.lanes for s in node.src)  # not bytes read as words
        if node.op.is_elementwise and is_lane_by_lane and _SIZE <= node.dtype.lanes <= lanes:
            made_of = {sources.get(s) for s in node.src if not s.is_const or isinstance(s.arg, tuple)}
            source = made_of.pop() if len(made_of) == 1 else None
            is_code = node.dtype.scalar is dtypes.uint8 and node.bounds[0] >= 0 and node.bounds[1] < _SIZE
            if source is not None or is_code:
                sources[node] = source or node
    return sources


def _evaluated(steps: Sequence[UOp], code: int) -> Any:
    """Evaluate the operations for one number."""
    known: dict[UOp, Any] = {steps[0]: code}
    for step in steps[1:]:
        known[step] = apply_op(step, tuple([known.get(s, s.arg) for s in step.src]))
    return known[steps[-1]]
