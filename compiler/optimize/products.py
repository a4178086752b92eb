"""A sum of products of two operands, each converted from what lies in a buffer: which loops are rows and columns.

Nothing here asks what a kernel computes beyond that one sum. Tests: tests/compiler/optimize/test_products.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernmill.ir import DType, Ops, UOp, closed_ranges, linear

from ..kernel import KernelInfo
from .actions import Action

__all__ = ["Operand", "Product", "find_product", "is_window"]


@dataclass(frozen=True, slots=True)
class Operand:
    """What is loaded: the buffer, what lies in it, and how far the place steps with each loop."""

    slot: int
    dtype: DType
    steps: dict[str, int]


@dataclass(frozen=True, slots=True)
class Product:
    """The only sum of a kernel. `operands`: left and right where there are rows and columns, loops of one of them each,
    and the output steps by 1 with the columns."""

    sizes: dict[str, int]
    outputs: list[str]  # outermost first
    dtype: DType  # of the sum
    operands: tuple[Operand, Operand]
    inner: str
    rows: str = ""
    columns: str = ""

    def in_blocks(
        self, columns: tuple[str, int, int], rows: tuple[str, int, int]
    ) -> tuple[list[Action], list[str], list[str]]:
        """The actions that walk panels and tiles of rows in blocks, the loops outside of a block, and those inside.

        Each as (the loop's next part by name, how many, how many blocks).
        """
        actions, outer, inside = (
            list[Action](),
            [n for n in self.outputs if n not in (self.rows, self.columns)],
            list[str](),
        )
        for name, (part, count, number) in ((self.columns, columns), (self.rows, rows)):
            each = -(-count // number)
            if 1 < each < count:
                actions.append(Action("split", (name, str(each))))
                outer.append(name)
                inside.append(part)
            elif count > 1:
                inside.append(name)
        return actions, outer, inside


def find_product(ast: UOp) -> Product | None:
    """The product that a kernel is; None where it is something else."""
    order = ast.toposort()
    sums = [node for node in order if node.op is Ops.REDUCE]
    loops = {str(r.arg[0]): r.src[0] for r in order if r.op is Ops.RANGE}
    if len(sums) != 1 or len(ast.src) != 1 or not all(size.is_const for size in loops.values()):
        return None
    (total,) = sums
    operands = _operands(total)
    steps = _steps(ast.src[0].src[0])
    if operands is None or len(closed_ranges(total)) != 1 or steps is None:
        return None
    info: KernelInfo = ast.arg
    sizes = {name: int(size.arg) for name, size in loops.items()}
    outputs = [name for name in info.order if name in sizes]
    inner = str(closed_ranges(total)[0].arg[0])
    if any(inner not in operand.steps for operand in operands):
        return None
    for left, right in (operands, operands[::-1]):
        columns = [name for name in outputs if steps.get(name) == 1 and name in right.steps and name not in left.steps]
        rows = [name for name in outputs if name in left.steps and name not in right.steps]
        if columns and rows:
            return Product(sizes, outputs, total.dtype, (left, right), inner, rows[-1], columns[0])
    return Product(sizes, outputs, total.dtype, operands, inner)


def is_window(sizes: Mapping[str, int], steps: Mapping[str, int | None], *loops: str) -> bool:
    """Whether two loops go over the same places of a buffer, i + k: a copy of them has one axis (staging.py)."""
    (near, count), (far, _) = sorted((abs(steps.get(name) or 0), sizes[name]) for name in loops)
    return near * count > far


def _operands(total: UOp) -> tuple[Operand, Operand] | None:
    """What is multiplied, where the sum is of products of two loads in a wider type."""
    if total.arg != (Ops.ADD, 1) or total.src[0].op is not Ops.MUL:
        return None
    a, b = (_operand(s) for s in total.src[0].src)
    return (a, b) if a is not None and b is not None else None


def _operand(u: UOp) -> Operand | None:
    if u.op is not Ops.CAST or u.src[0].op is not Ops.LOAD or u.src[0].src[0].src[0].op is not Ops.PARAM:
        return None
    place = u.src[0].src[0]
    steps = _steps(place)
    return None if steps is None else Operand(int(place.src[0].arg[0]), u.src[0].dtype, steps)


def _steps(place: UOp) -> dict[str, int] | None:
    """How far a place steps with each loop; None where it is gated or no plain sum of loops."""
    terms, _ = linear(place.src[1])
    if len(place.src) > 2 or any(atom.op is not Ops.RANGE for atom in terms):
        return None
    return {str(atom.arg[0]): k for atom, k in terms.items()}
