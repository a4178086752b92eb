"""The schedule of a sum of products of bytes, for a target with a dot product instruction.

Four terms of the sum become one instruction (lower/dot.py), which asks for them side by side: the reduce loop is copied
out by four, and innermost where an operand is packed. Nothing here asks what a kernel computes beyond that one sum.
Figures: docs/decisions/0010-dot-and-tiles.md. Tests: tests/compiler/optimize/test_dots.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernmill.ir import Ops, Target, UOp, closed_ranges, dtypes, linear

from ..kernel import KernelInfo
from ..lower.dot import BYTES, GROUP
from .actions import Action
from .packing import blocks

__all__ = ["dot_actions"]

_BLOCK = (4, 6)  # vectors and rows of a register tile; with 16 registers:
_SMALL_BLOCK = (2, 4)
_PACKED_ROWS = 4  # tiles that read a panel again, from which on packing pays


@dataclass(frozen=True, slots=True)
class _Operand:
    """A load of bytes: the buffer, and how far it steps with each loop."""

    slot: int
    is_signed: bool
    steps: dict[str, int]


def dot_actions(ast: UOp, target: Target) -> list[Action] | None:
    """The schedule without its threads; None where the kernel is something else."""
    sums = [node for node in ast.toposort() if node.op is Ops.REDUCE]
    loops = {str(r.arg[0]): r.src[0] for r in ast.toposort() if r.op is Ops.RANGE}
    if not target.dots or len(sums) != 1 or len(ast.src) != 1 or not all(size.is_const for size in loops.values()):
        return None
    sizes = {name: int(size.arg) for name, size in loops.items()}
    operands = _operands(sums[0])
    if operands is None or len(closed_ranges(sums[0])) != 1:
        return None
    inner = str(closed_ranges(sums[0])[0].arg[0])
    steps = _steps(ast.src[0].src[0])
    info: KernelInfo = ast.arg
    order = [name for name in info.order if name in sizes]
    if steps is None or sizes[inner] < 2 * GROUP:
        return None
    for left, right in (operands, operands[::-1]):
        columns = [name for name in order if steps.get(name) == 1 and name in right.steps and name not in left.steps]
        rows = [name for name in order if name in left.steps and name not in right.steps]
        if columns and rows:
            return _tiled(sizes, order, (rows[-1], columns[0], inner), (left, right), target)
    if all(operand.steps.get(inner) == 1 for operand in operands):
        return [Action("unroll", (inner, str(GROUP))), Action("vectorize", (inner, str(target.vector_bytes // 4)))]
    return None


def _tiled(
    sizes: dict[str, int],
    order: list[str],
    loops: tuple[str, str, str],
    operands: tuple[_Operand, _Operand],
    target: Target,
) -> list[Action]:
    rows, columns, inner = loops
    left, right = operands
    lanes = target.vector_bytes // 4
    while lanes > 4 and lanes >= 2 * sizes[columns]:
        lanes //= 2
    vectors, most = _BLOCK if target.vector_registers >= 32 else _SMALL_BLOCK
    vectors = min(vectors, -(-sizes[columns] // lanes))
    tile = min(range(1, most + 1), key=lambda n: (-(-sizes[rows] // n) * (n + 1), -n))
    actions = [Action("vectorize", (columns, str(lanes)))]
    actions += [Action("unroll", (name, str(n))) for name, n in ((columns, vectors), (rows, tile)) if n > 1]
    actions.append(Action("unroll", (inner, str(GROUP))))
    if sizes[rows] < _PACKED_ROWS * tile:
        return actions
    packs_rows = _is_moved(left, right) and left.steps.get(inner) == 1 and sizes[inner] % (GROUP * lanes) == 0
    panels, tiles = -(-sizes[columns] // (lanes * vectors)), -(-sizes[rows] // tile)
    across, down = blocks(sizes[columns], panels, sizes[rows], sizes[rows] * sizes[inner], target)
    outer, inside = [name for name in order if name not in (rows, columns)], list[str]()
    for name, count, number in ((columns, panels, across), (rows, tiles, down)):
        each = -(-count // number)
        if packs_rows and 1 < each < count:
            actions.append(Action("split", (name, str(each))))
            outer.append(name)
            inside.append(f"{name}.s")
        elif count > 1:
            inside.append(name)
    actions.append(Action("order", (*outer, *inside)))
    held = [name for name in inside if name.partition(".")[0] == rows]
    own = [inner] if sizes[inner] > GROUP else []
    wide = [f"{columns}.u"] if vectors > 1 else []
    panel = (*own, *wide, f"{columns}.v", f"{inner}.u")
    actions.append(Action("stage", (str(right.slot), *panel)))
    if packs_rows:  # adding 128 in the inner loop would cost a fifth of the time
        actions.append(
            Action("stage", (str(left.slot), *held, *([f"{rows}.u"] if tile > 1 else []), *own, f"{inner}.u"))
        )
        actions.append(Action("vectorize", (f"{inner}''", str(lanes))))
    return actions


def _is_moved(left: _Operand, right: _Operand) -> bool:
    return left.is_signed is right.is_signed


def _operands(total: UOp) -> tuple[_Operand, _Operand] | None:
    """What is multiplied, where the sum is of products of bytes."""
    if total.arg != (Ops.ADD, 1) or total.dtype is not dtypes.int32 or total.src[0].op is not Ops.MUL:
        return None
    found = [_operand(s) for s in total.src[0].src]
    return (found[0], found[1]) if found[0] is not None and found[1] is not None else None


def _operand(u: UOp) -> _Operand | None:
    if u.op is not Ops.CAST or u.src[0].op is not Ops.LOAD or u.src[0].dtype not in BYTES:
        return None
    place = u.src[0].src[0]
    steps = _steps(place)
    if steps is None or place.src[0].op is not Ops.PARAM:
        return None
    return _Operand(int(place.src[0].arg[0]), u.src[0].dtype is dtypes.int8, steps)


def _steps(place: UOp) -> dict[str, int] | None:
    """How far a place steps with each loop; None where it is gated or no plain sum of loops."""
    terms, _ = linear(place.src[1])
    if len(place.src) > 2 or any(atom.op is not Ops.RANGE for atom in terms):
        return None
    return {str(atom.arg[0]): k for atom, k in terms.items()}
