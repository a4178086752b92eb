"""Assignments in place: which of them may overwrite the old value.

When: before fusion, which gives an assignment that may not a separate buffer. Assumes: a slot of `in_place` is read by
nothing outside of the graph. Guarantees: at most one assignment overwrites a value; `find_hazards` refuses those whose
effect would be visible. Tests: tests/compiler/graph/test_choose_in_place.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence

from kernmill.ir import Ops, UOp, dtypes

from .bases import down_to_base, memory_base

__all__ = ["choose_in_place"]


def choose_in_place(roots: Sequence[UOp], in_place: Container[int], refused: Container[UOp]) -> dict[UOp, UOp]:
    """Return the ASSIGNs that may write over their old value, each with the PARAM that it writes."""
    order = UOp(Ops.SINK, dtypes.void, tuple(roots)).toposort()
    assignments = [node for node in order if node.op is Ops.ASSIGN and node not in refused]
    readers = Counter(s for node in order for s in node.src) if assignments else Counter[UOp]()
    targets: dict[UOp, UOp] = {}
    taken: set[UOp] = set()
    for node in assignments:
        old = memory_base(node.src[0])
        if old in taken:
            continue  # two assignments to one old value: only one may overwrite it
        taken.add(old)
        is_alone = all(readers[view] == 1 for view in down_to_base(node.src[0]))
        if (old.op is Ops.PARAM and old.arg[0] in in_place) or (old in targets and is_alone):
            targets[node] = targets.get(old, old)
    return targets
