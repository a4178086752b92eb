"""A sum of products of two operands, each converted from what lies in a buffer: which loops are rows and columns.

Nothing here asks what a kernel computes beyond that one sum. Tests: tests/compiler/optimize/test_products.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernmill.ir import DType, Ops, closed_ranges

from .look import Access, Shape

__all__ = ["Product", "find_product"]


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


def find_product(shape: Shape) -> Product | None:
    """The product that a kernel is; None where it is something else."""
    sums = [node for node in shape.ast.toposort() if node.op is Ops.REDUCE]
    if len(sums) != 1 or len(shape.stores) != 1 or shape.symbolic or not shape.stores[0].is_plain:
        return None
    (total,) = sums
    loops = closed_ranges(total)
    if total.arg != (Ops.ADD, 1) or total.src[0].op is not Ops.MUL or len(loops) != 1:
        return None
    loads = {a.node: a for a in shape.loads if a.is_plain and a.memory.op is Ops.PARAM}
    operands = [loads.get(s.src[0]) if s.op is Ops.CAST else None for s in total.src[0].src]
    inner, (first, second) = str(loops[0].arg[0]), operands
    if first is None or second is None or inner not in first.steps or inner not in second.steps:
        return None
    for left, right in ((first, second), (second, first)):
        columns = [
            n for n in shape.outputs if shape.stores[0].step(n) == 1 and n in right.steps and n not in left.steps
        ]
        rows = [n for n in shape.outputs if n in left.steps and n not in right.steps]
        if columns and rows:
            return Product(total.dtype, left, right, inner, rows[-1], columns[0])
    return Product(total.dtype, first, second, inner)
