"""Schedules of kernels that keep rows of intermediate values for themselves: softmax, attention.

Such a kernel works on one row after another, in several passes. Two shapes of it are known:
- along the row: each pass takes its lanes from its own loop, as if it stood alone (`passes_along_rows`);
- across rows: where passes are products that use each loaded value for many rows, the lanes are rows: every pass is
  then elementwise over the lanes, no sum is ever folded, and what the rows share is one scalar (`rows_as_lanes`).

Nothing here asks what a kernel computes. Tests: tests/compiler/optimize/test_rows.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernmill.ir import Ops, Target, UOp, closed_ranges, linear, memory_of

from ..kernel import KernelInfo, iterations
from .plan import Plan

__all__ = ["ask_for_next_row", "filling_loops", "keeping_loops", "kept_loops", "passes_along_rows", "products_across",
           "rows_as_lanes"]  # fmt: skip

_ROW_VECTORS = 2  # vectors of rows worked on together
_TILE = 8  # results of a product for each of them
_TERMS = 4  # terms of a product that are added before the loop goes round
_CACHED = 2  # times the L2 cache: of less memory the next row is near
_LONG_ROW = 16  # vectors; the loop over a shorter row may be copied out whole, and has nothing to wait for
_SPREAD = 2  # iterations of a pass that is no product, taken together


@dataclass(slots=True)
class _Pass:
    """A REDUCE or AFTER: its loops, the loops around it, and the loads inside its loops."""

    node: UOp
    loops: list[str]
    around: set[str]
    loads: list[UOp]

    def shared(self, loop: str) -> bool:
        """Whether some loads change with the loop and others serve all its iterations."""
        changing = [loop in _names(load) for load in self.loads]
        return any(changing) and not all(changing)


def kept_loops(ast: UOp) -> list[str]:
    """The output loops, outermost first, for each iteration of which rows are kept; none if no row is."""
    memories = _loops_of_memories(ast)
    info: KernelInfo = ast.arg
    common = set.intersection(*memories) if memories else set[str]()
    return [name for name in info.order if name in common]


def keeping_loops(ast: UOp) -> set[str]:
    """The loops for each iteration of which some row is kept: as lanes they would widen it."""
    return set[str]().union(*_loops_of_memories(ast))


def filling_loops(ast: UOp) -> set[str]:
    """The loops that fill kept rows; a sum over one is taken on the way."""
    return {str(loop.arg[0]) for node in ast.toposort() if node.op is Ops.AFTER for loop in closed_ranges(node)}


def _loops_of_memories(ast: UOp) -> list[set[str]]:
    return [{str(r.arg[0]) for r in node.src} for node in ast.toposort() if node.op is Ops.LOCAL]


def passes_along_rows(plan: Plan, ast: UOp, lanes: int) -> None:
    """Lanes for the loops that fill the rows; the reductions and the output get theirs as in any kernel."""
    for one in _passes(ast):
        name = one.loops[-1]
        size = _size(ast, name)
        if one.node.op is not Ops.AFTER or size < lanes or any(_step(load, name) not in (0, 1) for load in one.loads):
            continue
        if any(name in r.around for r in _passes(ast)):
            continue  # a reduction for each element of the row: its own loop has the lanes
        plan.cut("vectorize", name, lanes)
        if size // lanes >= 2 * _SPREAD:
            plan.cut("unroll", name, _SPREAD)


def ask_for_next_row(plan: Plan, ast: UOp, target: Target) -> None:
    """Where several passes read a row, the first waits for memory: the last one asks for the next row meanwhile."""
    order = ast.toposort()
    place = {str(loop.arg[0]): number for number, node in enumerate(order) for loop in closed_ranges(node)}
    info: KernelInfo = ast.arg
    passes: dict[UOp, dict[str, UOp]] = {}
    for load in order:
        if load.op is Ops.LOAD and load.src[0].src[0].op is Ops.PARAM:
            along = [name for name in _names(load) if _step(load, name) == 1]
            passes.setdefault(load.src[0].src[0], {}).update(dict.fromkeys(along, load))
    held = [max(_size(ast, name) for name in loads) * m.dtype.size_bytes for m, loads in passes.items() if loads]
    held += [node.arg[1] * node.dtype.size_bytes for node in order if node.op is Ops.LOCAL]
    for memory, loads in passes.items():
        last = max(loads, key=lambda name: place.get(name, len(order)), default="")
        if len(loads) < 2 or memory.arg[1] * memory.dtype.size_bytes <= _CACHED * target.l2_bytes:
            continue
        rows = [name for name in info.order if name in _names(loads[last]) and name != last]
        ahead = (_step(loads[last], rows[-1]) or 0 if rows else 0) * memory.dtype.size_bytes
        length = _size(ast, last) * memory.dtype.size_bytes if last else 0
        if _LONG_ROW * target.vector_bytes <= length <= ahead <= target.l2_bytes // 4:
            plan.add("prefetch", ahead, last, *(("L2",) if length + sum(held) > target.l1_bytes else ()))
            return


def products_across(ast: UOp, lanes: int) -> tuple[str, list[_Pass], list[tuple[_Pass, str]]]:
    """Of a kernel whose rows can be lanes: the loop over them, all passes, and those that are products, with the loop
    over results that share what is loaded for a row. No products where it is something else."""
    passes, fixed = _passes(ast) if lanes > 1 else [], kept_loops(ast)
    rows = next((name for name in reversed(fixed) if _size(ast, name) >= lanes), "")
    products = [(one, loop) for one in passes if (loop := _product_loop(one, fixed)) is not None]
    shares = rows and all(any(rows not in _names(load) for load in one.loads) for one, _ in products)
    return rows, passes, products if shares else []


def rows_as_lanes(ast: UOp, lanes: int) -> Plan | None:
    """The schedule across rows; None where it does not fit."""
    rows, passes, found = products_across(ast, lanes)
    if not found:
        return None
    fixed, products = kept_loops(ast), {id(one): loop for one, loop in found}
    plan = Plan(ast)
    plan.cut("vectorize", rows, lanes)
    plan.cut("unroll", rows, _ROW_VECTORS if _size(ast, rows) >= _ROW_VECTORS * lanes else 1)
    tiled, filling = set(products.values()), filling_loops(ast)
    for loop in sorted(tiled):
        plan.cut("unroll", loop, min(_TILE, _size(ast, loop)))
    terms = dict.fromkeys(one.loops[-1] for one in passes if id(one) in products)
    longer = {name: plan.cut("unroll", name, _TERMS) for name in terms if _is_long(ast, name, tiled)}
    spread = dict.fromkeys(one.loops[-1] for one in passes if id(one) not in products)
    for name in spread:
        if name not in tiled and _size(ast, name) >= 2 * _SPREAD:
            plan.cut("unroll" if name in filling else "group", name, _SPREAD)
    stages: dict[tuple[str, ...], None] = {}
    for one in passes:
        if id(one) in products:
            tile, copies = products[id(one)], [inner for name in one.loops for inner in longer.get(name, [])]
            blocks = [tile] if _size(ast, tile) > _TILE else []
            stages |= dict.fromkeys(_transposed(one, rows, tile, [*copies, *plan.copies(rows)]))
            stages |= dict.fromkeys(_widened(one, rows, tile, fixed, [*copies, *blocks, *plan.copies(tile)]))
    for stage in stages:
        plan.add("stage", *stage)
    return plan


def _is_long(ast: UOp, name: str, tiled: set[str]) -> bool:
    """Whether a loop over terms is longer than a few rounds of several terms each."""
    size = _size(ast, name)
    return name not in tiled and size % _TERMS == 0 and size >= 4 * _TERMS


def _transposed(one: _Pass, rows: str, tile: str, lanes: list[str]) -> list[tuple[str, ...]]:
    """What the lanes of a product would gather in each iteration is laid side by side first."""
    slots = {
        str(memory_of(load.src[0]).arg[0])
        for load in one.loads
        if _step(load, rows) not in (0, 1) and tile not in _names(load) and memory_of(load.src[0]).op is Ops.PARAM
    }
    return [(slot, *one.loops, *lanes) for slot in sorted(slots)]


def _widened(one: _Pass, rows: str, tile: str, fixed: list[str], copied: list[str]) -> list[tuple[str, ...]]:
    """Narrow floats that all rows share are copied once, so that they are converted once (compiler/convert.py)."""
    found: list[tuple[str, ...]] = []
    for load in one.loads:
        memory = memory_of(load.src[0])
        if rows in _names(load) or tile not in _names(load):
            continue
        if memory.op is Ops.PARAM and load.dtype.is_float and load.dtype.size_bytes < 4:
            found.append((str(memory.arg[0]), *sorted(_names(load) - {*fixed, tile}), *copied))
    return found


def _passes(ast: UOp) -> list[_Pass]:
    passes: list[_Pass] = []
    for node in ast.toposort():
        loops = [str(r.arg[0]) for r in closed_ranges(node)]
        if loops:
            inside = [n for n in _inside(node) if n.op is Ops.LOAD and _names(n) & set(loops)]
            passes.append(_Pass(node, loops, {str(r.arg[0]) for r in node.ranges}, inside))
    return passes


def _inside(node: UOp) -> list[UOp]:
    """What a pass computes itself: not what earlier passes left in memory or in a sum."""
    found: dict[UOp, None] = {}
    stack = [s for s in node.src if s.op is not Ops.RANGE and s.op is not Ops.LOCAL]
    while stack:
        u = stack.pop()
        if u not in found:
            found[u] = None
            stack += [s for s in u.src if not closed_ranges(s)]
    return list(found)


def _product_loop(one: _Pass, fixed: list[str]) -> str | None:
    """The loop over results of a product which share what is loaded for the row."""
    if one.node.op is not Ops.REDUCE:
        return None
    around = sorted(one.around - set(fixed))
    return next((name for name in around if one.shared(name)), None)


def _names(node: UOp) -> set[str]:
    return {str(r.arg[0]) for r in (node.src[0].src[1].ranges if node.op is Ops.LOAD else node.ranges)}


def _step(load: UOp, loop: str) -> int | None:
    terms, _ = linear(load.src[0].src[1])
    if any(atom.op is not Ops.RANGE and any(r.arg[0] == loop for r in atom.ranges) for atom in terms):
        return None
    return next((factor for atom, factor in terms.items() if atom.op is Ops.RANGE and atom.arg[0] == loop), 0)


def _size(ast: UOp, name: str) -> int:
    loop = next(node for node in ast.toposort() if node.op is Ops.RANGE and node.arg[0] == name)
    return iterations(loop)
