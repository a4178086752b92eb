"""The schedule of sums over blocks: short sums of products of bytes, scaled and added up, as quantised weights ask for.

Lanes are outputs whose words lie side by side in one operand, so that no sum goes across lanes. The short sum is copied
out whole and becomes a chain of dot products (lower/dot.py); of the loops over blocks those stay that a body has no
room for. The other operand is the same in all lanes; the outputs that it steps with are a register tile.
Figures: docs/decisions/0019-quantised-products.md. Tests: tests/compiler/optimize/test_blocks.py.
"""

from __future__ import annotations

from kernmill.ir import Ops, Target, UOp, closed_ranges, dtypes

from .actions import Action, apply_actions
from .look import Shape, look, nest_iterations

__all__ = ["block_actions", "is_nested"]

_WORD = 4  # bytes of each lane that one instruction takes
_DOTS = 16  # of them in one body
_TILE = 8  # rows of a register tile
_AHEAD = 2048  # bytes


def is_nested(total: UOp) -> bool:
    """Whether a sum adds up what rests on other sums in its own loops."""
    loops = set(closed_ranges(total))
    return any(n.op is Ops.REDUCE and not loops.isdisjoint(n.ranges) for n in total.src[0].toposort())


def block_actions(ast: UOp, target: Target) -> list[Action] | None:
    """The schedule without its threads; None where the kernel is something else."""
    nested, short = _sums(ast)
    if not target.dots or len(ast.src) != 1 or not nested or len(nested) != len(short):
        return None
    if not all(node.src[0].is_const for node in ast.toposort() if node.op is Ops.RANGE):
        return None
    lanes, info = target.vector_bytes // _WORD, ast.arg
    for column in (r for r in ast.toposort() if r.op is Ops.RANGE and r.arg[0] in info.order):
        if column.src[0].arg % lanes == 0:
            wide = Action("vectorize", (str(column.arg[0]), str(lanes)))
            shape = look(cut := apply_actions(ast, [wide]), target)  # what lies side by side may be a digit of a loop
            own = f"{column.arg[0]}.v"
            matrices = [m for total in _sums(cut)[1] if (m := _matrix(total, shape, own)) is not None]
            if shape.stores[0].step(own) == 1 and len(matrices) == len(short):
                return [wide, *_tiled(cut, shape, matrices, target)]
    return None


def _sums(ast: UOp) -> tuple[list[UOp], list[UOp]]:
    """Those that rest on others, and the others."""
    sums = [node for node in ast.toposort() if node.op is Ops.REDUCE]
    nested = [total for total in sums if is_nested(total)]
    return nested, [total for total in sums if total not in nested]


def _tiled(ast: UOp, shape: Shape, matrices: list[UOp], target: Target) -> list[Action]:
    sizes, (nested, short) = shape.sizes, _sums(ast)
    copied = dict.fromkeys(str(r.arg[0]) for total in short for r in closed_ranges(total))
    body = max(nest_iterations(shape, [str(r.arg[0]) for r in closed_ranges(total)]) for total in short) // _WORD
    places = [n.src[0] for m in matrices for n in m.toposort() if n.op is Ops.LOAD]
    around = dict.fromkeys(str(r.arg[0]) for total in nested for r in closed_ranges(total)[1:])
    for name in sorted(around, key=lambda n: sum(n in _names(place) for place in places)):  # most shared first
        if body * sizes[name] <= _DOTS:
            copied[name] = None
            body *= sizes[name]
    actions = [Action("unroll", (name, str(sizes[name]))) for name in copied]
    left = [name for name in ast.arg.order if sizes[name] > 1 and not name.endswith(".v")]
    beside = [name for name in left if any(name in _names(m) for m in matrices)]
    rows = [name for name in left if name not in beside]
    if rows:
        count = sizes[rows[-1]]
        tile = min(range(1, _TILE + 1), key=lambda n: (-(-count // n) * (n + 1), -n))
        actions += [Action("unroll", (rows[-1], str(tile)))] if tile > 1 else []
        actions.append(Action("order", (*beside, *[n for n in rows if sizes[n] > tile or n != rows[-1]])))
        return actions
    if len(matrices) == 1:
        actions += [Action("unroll", (name, "2")) for name in beside[-1:] if sizes[name] % 2 == 0]
    return [*actions, Action("prefetch", (str(_AHEAD),))]  # it leaves alone what is small


def _matrix(total: UOp, shape: Shape, lanes: str) -> UOp | None:
    """The operand that lies word by word along the lanes while the other is the same in all of them, if there is one
    in a sum of products of bytes."""
    value = total.src[0]
    if total.arg != (Ops.ADD, 1) or total.dtype is not dtypes.int32 or value.op is not Ops.MUL:
        return None
    if not all(s.op is Ops.CAST and s.src[0].dtype.size_bytes == 1 and not s.src[0].dtype.is_bool for s in value.src):
        return None
    for matrix, other in (value.src, value.src[::-1]):
        order = set(matrix.toposort())
        steps = [a.step(lanes) for a in shape.loads if a.node in order and lanes in a.steps]
        is_plain = all(len(n.src[0].src) == 2 for n in order if n.op is Ops.LOAD)
        if is_plain and steps and lanes not in _names(other) and all(step in (1, _WORD) for step in steps):
            return matrix
    return None


def _names(u: UOp) -> set[str]:
    return {str(r.arg[0]) for r in u.ranges}
