"""A sum of products of two operands, each converted from what lies in a buffer: which loops are rows and columns.

Nothing here asks what a kernel computes beyond that one sum. Tests: tests/compiler/optimize/test_products.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernmill.ir import DType, Ops, UOp, closed_ranges

from .analysis import Access, Facts

__all__ = ["Product", "find_product", "operands"]


@dataclass(frozen=True, slots=True)
class Product:
    """The only sum of a kernel. Where there are rows and columns they are loops of `left` and of `right` alone, and the
    output steps by 1 with the columns."""

    dtype: DType  # of the sum
    left: Access
    right: Access
    inner: str
    rows: str = ""
    columns: str = ""


def operands(facts: Facts, total: UOp) -> list[Access]:
    """What a sum over one loop multiplies, if both are converted from plain loads that change with the loop."""
    loops, loads = closed_ranges(total), {a.node: a for a in facts.loads if a.is_plain}
    if total.arg != (Ops.ADD, 1) or total.src[0].op is not Ops.MUL or len(loops) != 1:
        return []
    found = [loads.get(s.src[0]) for s in total.src[0].src if s.op is Ops.CAST]
    both = [a for a in found if a is not None and str(loops[0].arg[0]) in a.steps]
    return both if len(both) == 2 else []


def find_product(facts: Facts) -> Product | None:
    """The product that a kernel is; None where it is something else."""
    sums = [node for node in facts.ast.toposort() if node.op is Ops.REDUCE]
    if len(sums) != 1 or len(facts.stores) != 1 or facts.symbolic or not facts.stores[0].is_plain:
        return None
    (total,) = sums
    found = operands(facts, total)
    if not found or any(a.memory.op is not Ops.PARAM for a in found):
        return None
    (first, second), inner = found, str(closed_ranges(total)[0].arg[0])
    for left, right in ((first, second), (second, first)):
        columns = [
            n for n in facts.outputs if facts.stores[0].step(n) == 1 and n in right.steps and n not in left.steps
        ]
        rows = [n for n in facts.outputs if n in left.steps and n not in right.steps]
        if columns and rows:
            return Product(total.dtype, left, right, inner, rows[-1], columns[0])
    return Product(total.dtype, first, second, inner)
