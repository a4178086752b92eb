"""Facts that passes need about any kernel: its loops and their order, indices and gates, neutral elements."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, reduce

from kernmill.ir import Op, Ops, UOp, const, dtypes, linear, substitute

__all__ = [
    "BUFFER_COST", "LOOP_COST", "MOST_CODE", "KernelInfo", "code_cost", "combined", "conjuncts", "gated",
    "iterations", "loops_of", "masked", "mean_iterations", "names_of", "neutral_element", "numbered", "order_of",
    "output_loops", "reordered", "routine_of", "slot_of", "step_of", "stored",
]  # fmt: skip

MOST_CODE = 1 << 10  # cost of one kernel: at 32 bytes of code for each unit, its instructions fit a cache of 32 KiB
LOOP_COST = 16  # of a reduction: begin and end of its loop, and the tail loop of its vectors
_PARTS = 16  # of the outer loops, at which the size of an inner one is looked at
BUFFER_COST = 4  # of a read: an address, and its index arithmetic


@lru_cache(maxsize=1024)  # equal layers have one kernel
def code_cost(ast: UOp) -> int:
    """Return the code size of a kernel, in additions; index arithmetic is part of the reads."""
    cost = 0
    for node in ast.toposort():
        if node.op is Ops.REDUCE:
            cost += LOOP_COST
        elif node.op is Ops.LOAD:
            cost += BUFFER_COST
        elif node.op.is_elementwise and node.dtype is not dtypes.index:
            cost += node.op.cost
    return cost


def iterations(loop: UOp) -> int:
    """How often a loop runs; where its size is known at launch only, at most."""
    return int(loop.src[0].bounds[1])


def mean_iterations(loop: UOp) -> float:
    """How often a loop runs on average over the loops that its size depends on, as in the triangle of a causal mask."""
    size = loop.src[0]
    outer = size.ranges
    if not outer:
        return float(iterations(loop))
    parts = [(part + 0.5) / _PARTS for part in range(_PARTS)]
    tables = ({one: const(one.dtype, int(part * iterations(one))) for one in outer} for part in parts)
    return max(1.0, sum(substitute(size, table).bounds[1] for table in tables)) / _PARTS


def conjuncts(gate: UOp | None) -> list[UOp]:
    """Return the conditions whose conjunction is the gate; none without a gate."""
    if gate is None:
        return []
    return [p for s in gate.src for p in conjuncts(s)] if gate.op is Ops.AND else [gate]


def step_of(index: UOp, loop: UOp) -> int:
    """Return the stride in elements of an index along a loop; past its end a clamped loop has stride 0."""
    step = 0
    for atom, factor in linear(index)[0].items():
        if atom is loop:
            step += factor
        elif atom.op is Ops.MIN:
            step += factor * step_of(atom.src[0], loop)
    return abs(step)


def routine_of(ast: UOp) -> UOp | None:
    """The ROUTINE of a kernel, if it is one."""
    if len(ast.src) != 1 or ast.src[0].op is not Ops.STORE:
        return None
    node = ast.src[0].src[1]
    return node if node.op is Ops.ROUTINE else None


def slot_of(access: UOp) -> int | None:
    """Return the number of the buffer of a LOAD or STORE; None for a kernel-local buffer."""
    memory = access.src[0].src[0]
    return int(memory.arg[0]) if memory.op is Ops.PARAM else None


def gated(index: UOp, valid: UOp | None) -> UOp:
    """Return the INDEX, accessed only where `valid` is true."""
    if valid is None:
        return index
    return index.replace(src=(*index.src[:2], valid if index.gate is None else index.gate & valid))


def neutral_element(op: Op, like: UOp) -> UOp:
    """The constant that a reduction starts from."""
    dtype = like.dtype.scalar
    value = {Ops.MAX: dtype.min, Ops.MIN: dtype.max, Ops.AND: -1}.get(op, op.unit)
    return const(like.dtype, True if op is Ops.AND and dtype.is_bool else value)


def combined(op: Op, values: Iterable[UOp]) -> UOp:
    """The values in order, from the first on, by an op."""
    return reduce(lambda a, b: a.alu(op, b), values)


def masked(value: UOp, op: Op) -> tuple[UOp | None, UOp]:
    """Split a reduction operand into the condition outside which it is neutral (None: none), and its value inside."""
    is_masked = value.op is Ops.WHERE and value.src[2] is neutral_element(op, value)
    return (value.src[0], value.src[1]) if is_masked else (None, value)


def loops_of(ast: UOp) -> dict[str, UOp]:
    """The loops of a kernel by name."""
    return {str(node.arg[0]): node for node in ast.toposort() if node.op is Ops.RANGE}


def names_of(loops: Iterable[UOp]) -> list[str]:
    """The names of these loops."""
    return [str(loop.arg[0]) for loop in loops]


def order_of(ast: UOp) -> tuple[str, ...]:
    """The names of the output loops, outermost first."""
    info: KernelInfo = ast.arg
    return info.order


def output_loops(ast: UOp) -> list[UOp]:
    """The output loops, outermost first."""
    loops = loops_of(ast)
    return [loops[name] for name in order_of(ast) if name in loops]


def reordered(ast: UOp, names: Iterable[str]) -> UOp:
    """The kernel with its output loops in this order, outermost first."""
    return ast.replace(arg=replace(ast.arg, order=tuple(names)))


def numbered(ast: UOp) -> tuple[UOp, tuple[int, ...]]:
    """Renumber the kernel's slots 0, 1, ..: first written, then read buffers; also return their former slots."""
    params = [node for node in ast.toposort() if node.op is Ops.PARAM]
    written = [store.src[0].src[0] for store in ast.src]
    numbers = list(dict.fromkeys(node.arg[0] for node in (*written, *params)))
    table = {node: node.replace(arg=(numbers.index(node.arg[0]), *node.arg[1:])) for node in params}
    return substitute(ast, table), tuple(numbers)


def stored(stores: Iterable[UOp]) -> tuple[UOp, ...]:
    """The stores that may write something, without gates that always hold."""
    kept: list[UOp] = []
    for store in stores:
        at, value = store.src
        low, high = (0, 1) if at.gate is None else at.gate.bounds
        if high:
            kept.append(store.replace(src=(at.replace(src=at.src[:2]), value)) if low else store)
    return tuple(kept)


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """The arg of a kernel's SINK: its name, the order of its output loops (outermost first), the actions so far."""

    name: str
    order: tuple[str, ...]
    actions: tuple[str, ...] = ()
