"""The schedule of sums over blocks: short sums of products of bytes, scaled and added up, as quantised weights ask for.

Lanes are outputs whose words lie side by side in one operand, so that no sum goes across lanes. The short sum is copied
out whole and becomes a chain of dot products (lower/dot.py); of the loops over blocks those stay that a body has no
room for. The other operand is the same in all lanes; the outputs that it steps with are a register tile.
Figures: docs/decisions/0019-quantised-products.md. Tests: tests/compiler/optimize/test_blocks.py.
"""

from __future__ import annotations

from kernmill.ir import Ops, Target, UOp, closed_ranges, dtypes, linear

from ..kernel import KernelInfo
from .actions import Action

__all__ = ["block_actions", "is_nested"]

_WORD = 4  # bytes of each lane that one instruction takes
_DOTS = 16  # of them in one body
_TILE = 8  # rows of a register tile
_AHEAD = 4096  # bytes
_LARGE = 8  # times L2: what no cache keeps until it is needed again


def is_nested(total: UOp) -> bool:
    """Whether a sum adds up what rests on other sums in its own loops."""
    loops = set(closed_ranges(total))
    return any(n.op is Ops.REDUCE and not loops.isdisjoint(n.ranges) for n in total.src[0].toposort())


def block_actions(ast: UOp, target: Target) -> list[Action] | None:
    """The schedule without its threads; None where the kernel is something else."""
    if not target.dots or len(ast.src) != 1:
        return None
    order = ast.toposort()
    loops = {str(r.arg[0]): r.src[0] for r in order if r.op is Ops.RANGE}
    sums = [node for node in order if node.op is Ops.REDUCE]
    if len(sums) != 2 or not is_nested(sums[1]) or not all(size.is_const for size in loops.values()):
        return None
    sizes = {name: int(size.arg) for name, size in loops.items()}
    operands = _operands(sums[0])
    info: KernelInfo = ast.arg
    outputs = [name for name in info.order if name in sizes]
    lanes = target.vector_bytes // _WORD
    steps = _steps(ast.src[0].src[0])
    for matrix, other in (operands, operands[::-1]) if operands else ():
        column = next(
            (n for n in outputs if steps.get(n) == 1 and _lies_beside(matrix, n) and n not in _names(other)), ""
        )
        if column and sizes[column] % lanes == 0:
            return _tiled(sums, sizes, (column, lanes), outputs, matrix, target)
    return None


def _tiled(
    sums: list[UOp], sizes: dict[str, int], column: tuple[str, int], outputs: list[str], matrix: UOp, target: Target
) -> list[Action]:
    inner, outer = ([str(r.arg[0]) for r in closed_ranges(total)] for total in sums)
    actions = [Action("vectorize", (column[0], str(column[1])))]
    body = 1
    for name in inner:
        actions.append(Action("unroll", (name, str(sizes[name]))))
        body *= sizes[name]
    body //= _WORD
    places = [n.src[0] for n in matrix.toposort() if n.op is Ops.LOAD]
    for name in sorted(outer[1:], key=lambda n: sum(n in _names(place) for place in places)):  # most shared first
        if body * sizes[name] <= _DOTS:
            actions.append(Action("unroll", (name, str(sizes[name]))))
            body *= sizes[name]
    beside = [name for name in outputs if name in _names(matrix) and name != column[0]]
    rows = [name for name in outputs if name not in _names(matrix) and sizes[name] > 1]
    if rows:
        count = sizes[rows[-1]]
        tile = min(range(1, _TILE + 1), key=lambda n: (-(-count // n) * (n + 1), -n))
        actions += [Action("unroll", (rows[-1], str(tile)))] if tile > 1 else []
        actions.append(Action("order", (*beside, *[n for n in rows if sizes[n] > tile or n != rows[-1]])))
        return actions
    actions += [Action("unroll", (name, "2")) for name in beside[-1:] if sizes[name] % 2 == 0]
    params = {n for n in matrix.toposort() if n.op is Ops.PARAM}
    if sum(p.arg[1] * p.dtype.size_bytes for p in params) > _LARGE * target.l2_bytes:
        actions.append(Action("prefetch", (str(_AHEAD),)))
    return actions


def _operands(total: UOp) -> tuple[UOp, UOp] | None:
    """What is multiplied, where the sum is of products of bytes."""
    value = total.src[0]
    if total.arg != (Ops.ADD, 1) or total.dtype is not dtypes.int32 or value.op is not Ops.MUL:
        return None
    a, b = value.src
    is_bytes = all(s.op is Ops.CAST and s.src[0].dtype.size_bytes == 1 and not s.src[0].dtype.is_bool for s in (a, b))
    return (a, b) if is_bytes else None


def _lies_beside(u: UOp, name: str) -> bool:
    """Whether all that is read below lies word by word along the loop."""
    places = [n.src[0] for n in u.toposort() if n.op is Ops.LOAD and name in _names(n)]
    return bool(places) and all(len(p.src) == 2 and _steps(p).get(name) in (1, _WORD) for p in places)


def _names(u: UOp) -> set[str]:
    return {str(r.arg[0]) for r in u.ranges}


def _steps(place: UOp) -> dict[str, int]:
    """How far a place steps with those loops of which it is a plain multiple."""
    terms, _ = linear(place.src[1])
    return {str(atom.arg[0]): k for atom, k in terms.items() if atom.op is Ops.RANGE}
