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
from .staging import unpacked

__all__ = ["block_actions", "is_nested"]

_WORD = 4  # bytes of each lane that one instruction takes
_DOTS = 16  # of them in one body
_TILE = 8  # rows of a register tile
_PAIR_TILE = 6  # of one that is two vectors wide
_LEAST_TILES = 4  # that read the codes again, from which on they are unpacked once
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
    around = dict.fromkeys(str(r.arg[0]) for total in nested for r in closed_ranges(total)[1:])
    left = [name for name in ast.arg.order if sizes[name] > 1 and not name.endswith(".v")]
    beside = [name for name in left if any(name in _names(m) for m in matrices)]
    rows = [name for name in left if name not in beside]
    if len(matrices) == 1 and beside and rows and sizes[rows[-1]] > _TILE and target.vector_registers >= 32:
        return _many_rows(ast, shape, (matrices[0], short[0], nested[0]), (beside, rows), target)
    body = max(nest_iterations(shape, [str(r.arg[0]) for r in closed_ranges(total)]) for total in short) // _WORD
    places = [n.src[0] for m in matrices for n in m.toposort() if n.op is Ops.LOAD]
    for name in sorted(around, key=lambda n: sum(n in _names(place) for place in places)):  # most shared first
        if body * sizes[name] <= _DOTS:
            copied[name] = None
            body *= sizes[name]
    actions = [Action("unroll", (name, str(sizes[name]))) for name in copied]
    if rows:
        tile = _rows_of_tile(sizes[rows[-1]], _TILE)
        actions += [Action("unroll", (rows[-1], str(tile)))] if tile > 1 else []
        actions.append(Action("order", (*beside, *[n for n in rows if sizes[n] > tile or n != rows[-1]])))
        return actions
    if len(matrices) == 1:
        actions += [Action("unroll", (name, "2")) for name in beside[-1:] if sizes[name] % 2 == 0]
    return [*actions, Action("prefetch", (str(_AHEAD),))]  # it leaves alone what is small


def _rows_of_tile(count: int, most: int) -> int:
    """Rows of a tile, at most so many, that leave little of the last tile empty."""
    return min(range(1, most + 1), key=lambda n: (-(-count // n) * (n + 1), -n))


def _many_rows(
    ast: UOp, shape: Shape, found: tuple[UOp, UOp, UOp], loops: tuple[list[str], list[str]], target: Target
) -> list[Action]:
    """One block's short sums of a tile of rows at a time; where enough tiles read them again, the codes of all blocks
    are unpacked once, and so are their scales: what is made of the matrix alone is staged."""
    (matrix, short, nested), (beside, rows), sizes = found, loops, shape.sizes
    column, lanes = beside[-1], next(r for r in matrix.ranges if str(r.arg[0]).endswith(".v"))
    pair = sizes[column] % 2 == 0
    tile = _rows_of_tile(sizes[rows[-1]], _PAIR_TILE if pair else 2 * _PAIR_TILE)
    words = [str(r.arg[0]) for r in closed_ranges(short)]
    blocks = [str(r.arg[0]) for r in closed_ranges(nested)]
    actions = [Action("unroll", (name, str(sizes[name]))) for name in words]
    actions += [Action("unroll", (column, "2"))] if pair else []
    actions.append(Action("unroll", (rows[-1], str(tile))))
    outer = [name for name in beside if name != column or sizes[name] > 1 + pair]
    actions.append(Action("order", (*outer, *[n for n in rows if sizes[n] > tile or n != rows[-1]])))
    side = [*([f"{column}.u"] if pair else []), str(lanes.arg[0])]
    panel = nest_iterations(shape, [*blocks, *words]) * len(side) * int(lanes.src[0].arg)
    if nest_iterations(shape, rows) < _LEAST_TILES * tile or panel > target.l2_bytes // 2:
        return actions
    places = [n.src[0] for n in matrix.toposort() if n.op is Ops.LOAD]
    slot = places[0].src[0].arg[0]
    loads = [n for n in ast.toposort() if n.op is Ops.LOAD and n.src[0].src[0] is places[0].src[0]]
    codes = [*(n for n in blocks if n in _names(matrix)), *side[:-1], *(f"{n}.u" for n in words[:-1])]
    actions.append(Action("stage", (str(slot), *codes, side[-1], f"{words[-1]}.u")))
    shared = [n for n in blocks if n in codes and not all(n in _names(place) for place in places)]
    actions += [Action("unroll", (f"{n}'", str(sizes[n]))) for n in shared]  # a byte is read once for all its codes
    scales = [_names(value) for value in unpacked(ast, loads) if _names(value).isdisjoint(words)]
    for names in dict.fromkeys(tuple(n for n in blocks if n in value) for value in scales):
        actions.append(Action("stage", (str(slot), *names, *side)))
    return actions


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
