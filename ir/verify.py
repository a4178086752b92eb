"""The legality rules of each stage: ops, kinds of loops, and what every op requires of its sources.

The rows below are the specification; `verify` walks a graph or a linear list and reports the first node that breaks
one, with the pass that made it and the nodes around it. Checked between passes with CHECK=1 and in all tests
(compiler/pipeline.py).

Indices that depend on data (loaded indices) are not checked: a CHECK on the tensor guards them (Ops.TAKE).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Final, TypeAlias

from .dtype import dtypes
from .ops import AxisKind, Op, OpGroup, Ops
from .process.errors import InternalError
from .shape import numel
from .target import DOT_SUMS
from .text import print_uop
from .uop import UOp
from .values import Given

__all__ = ["Stage", "verify"]


class Stage(StrEnum):
    """The stages of a program from the user's expression to a list of instructions."""

    TENSOR = "tensor"  # the user's graph
    KERNEL = "kernel"  # SINK of STOREs to PARAMs, with loops, REDUCE over loops, INDEX and LOAD
    OPTIMIZED = "optimized"  # the optimizer has split loops and given each its kind
    VECTORIZED = "vectorized"  # unrolled loops and vector loops are gone; dtypes have lanes
    LOWERED = "lowered"  # accumulators instead of REDUCE
    LINEAR = "linear"  # a list: sources before uses, loops opened and closed


# --- the specification: ops and kinds of loops at each stage ---------------------------------------------------------
_ELEMENTWISE: Final = frozenset(op for op in Ops.rows() if op.is_elementwise)
_VECTOR: Final = frozenset(op for op in Ops.rows() if op.group is OpGroup.VECTOR)
_KERNEL: Final = _ELEMENTWISE | {
    Ops.CONST, Ops.PARAM, Ops.VARIABLE, Ops.RANGE, Ops.REDUCE, Ops.INDEX, Ops.LOAD, Ops.STORE, Ops.LOCAL,
    Ops.AFTER, Ops.SINK,
}  # fmt: skip
_OPTIMIZED: Final = _KERNEL | {Ops.MMA, Ops.CARRY}
_LOWERED: Final = (_KERNEL | _VECTOR | {Ops.REG, Ops.CARRY, Ops.SET, Ops.PREFETCH}) - {Ops.REDUCE}

LEGAL_OPS: Final[dict[Stage, frozenset[Op]]] = {
    Stage.TENSOR: _ELEMENTWISE
    | {op for op in Ops.rows() if op.group in (OpGroup.SOURCE, OpGroup.MOVEMENT, OpGroup.REDUCTION, OpGroup.TENSOR)},
    Stage.KERNEL: _KERNEL,
    Stage.OPTIMIZED: _OPTIMIZED,
    Stage.VECTORIZED: _KERNEL | _VECTOR | {Ops.CARRY},
    Stage.LOWERED: _LOWERED,
    Stage.LINEAR: (_LOWERED | {Ops.END, Ops.BARRIER}) - {Ops.SINK},
}

_COPIED_OUT: Final = frozenset({AxisKind.UNROLL, AxisKind.VECTOR, AxisKind.RFACTOR})
LEGAL_KINDS: Final[dict[Stage, frozenset[AxisKind]]] = {
    Stage.TENSOR: frozenset(),
    Stage.KERNEL: frozenset({AxisKind.LOOP, AxisKind.REDUCE}),
    Stage.OPTIMIZED: frozenset(AxisKind),
    Stage.VECTORIZED: frozenset(AxisKind) - _COPIED_OUT,
    Stage.LOWERED: frozenset(AxisKind) - _COPIED_OUT,
    Stage.LINEAR: frozenset(AxisKind) - _COPIED_OUT,
}

_WITH_VECTORS: Final = frozenset({Stage.VECTORIZED, Stage.LOWERED, Stage.LINEAR})

# --- the specification: dtypes of operands ---------------------------------------------------------------------------
_FLOAT_ONLY: Final = frozenset({
    Ops.EXP, Ops.EXP2, Ops.LOG, Ops.LOG2, Ops.SIN, Ops.COS, Ops.TANH, Ops.ERF, Ops.SQRT, Ops.DIV, Ops.SCALE,
})  # fmt: skip
_INT_ONLY: Final = frozenset({Ops.SHL, Ops.SHR, Ops.CDIV, Ops.CMOD})
_NOT_BOOL: Final = frozenset({Ops.NEG, Ops.ABS, Ops.SUB})  # a bool has no sign
_BITS_ONLY: Final = frozenset({Ops.AND, Ops.OR, Ops.XOR})
_BYTES: Final = frozenset({dtypes.int8, dtypes.uint8})
_PLACES: Final = frozenset({Ops.PARAM, Ops.LOCAL})  # legal sources of an INDEX, below any number of AFTERs

Complaint: TypeAlias = "str | None"
Check: TypeAlias = Callable[[UOp, Stage], Complaint]


_WIDTH_COUNTS = (Ops.SHUFFLE, Ops.LANES, Ops.BITCAST)  # others may belong to a matrix unit, whose operands are wider


def verify(program: UOp | Sequence[UOp], stage: Stage, where: str, most_lanes: int | None = None) -> None:
    """Check a graph, or for `Stage.LINEAR` a list, against the specification of its stage. If `most_lanes` is given, no
    vector may be wider.

    Raises:
        InternalError: the first node that breaks a rule, with `where` (the pass that made it) and the nodes around it.
    """
    nodes = program.toposort() if isinstance(program, UOp) else list(program)
    if stage is Stage.LINEAR:
        _verify_list(nodes, where)
    for node in nodes:
        complaint = _complaint(node, stage) or _too_wide(node, most_lanes)
        if complaint is not None:
            raise _error(nodes, node, stage, where, complaint)


def _too_wide(node: UOp, most_lanes: int | None) -> Complaint:
    if most_lanes is None or node.op not in _WIDTH_COUNTS:
        return None
    lanes = max(u.dtype.lanes for u in (node, *node.src))
    return f"{node.op.name} of {lanes} lanes, and the target has at most {most_lanes}" if lanes > most_lanes else None


def _complaint(node: UOp, stage: Stage) -> Complaint:
    op = node.op
    if op not in LEGAL_OPS[stage]:
        return f"{op.name} is not legal at stage {stage}"
    if stage is Stage.TENSOR and node.dtype.is_index and node.shape:
        return f"{op.name} makes a tensor of dtype index, which is only for sizes and loops"
    if op.arity is not None and len(node.src) != op.arity:
        return f"{op.name} takes {op.arity} sources and has {len(node.src)}"
    for check in (_BY_OP.get(op), _BY_GROUP.get(op.group)):
        if check is not None and (found := check(node, stage)) is not None:
            return found
    return None


def _error(nodes: Sequence[UOp], node: UOp, stage: Stage, where: str, complaint: str) -> InternalError:
    """Build the message, with the ten nodes around the culprit as text."""
    at = nodes.index(node)
    users = [u for u in nodes if any(s is node for s in u.src)][:3]
    near = dict.fromkeys([*node.src, *nodes[max(0, at - 3) : at], node, *users, *nodes[at + 1 : at + 4]])
    chosen = sorted(list(near)[:10] + ([node] if node not in list(near)[:10] else []), key=nodes.index)
    number = {u: n for n, u in enumerate(nodes)}
    lines = [f"{'->' if u is node else '  '} {print_uop(u, number)}" for u in chosen]
    return InternalError(
        f"{where}: {complaint}. It is node %{at} of {len(nodes)} of a {stage} program; around it:\n" + "\n".join(lines)
    )


# --- requirements of each group --------------------------------------------------------------------------------------
def _names(nodes: Iterable[UOp]) -> str:
    return ", ".join(s.dtype.name for s in nodes)


def _arithmetic(node: UOp, stage: Stage) -> Complaint:
    """Check that all dtypes are equal, and that the op is defined for it."""
    dtype = node.dtype
    if any(s.dtype is not dtype for s in node.src):
        return f"{node.op.name} gives {dtype.name} from {_names(node.src)}: all must be one dtype"
    if node.op in _FLOAT_ONLY and not dtype.is_float:
        return f"{node.op.name} is of floats, not of {dtype.name}"
    if node.op in _INT_ONLY and not dtype.is_int:
        return f"{node.op.name} is of ints, not of {dtype.name}"
    if node.op in _NOT_BOOL and dtype.is_bool:
        return f"{node.op.name} is of numbers, not of {dtype.name}"
    if node.op in _BITS_ONLY and dtype.is_float:
        return f"{node.op.name} is of ints and bools, not of {dtype.name}"
    return "an elementwise op has no value of dtype void" if dtype.bits == 0 else None


def _comparison(node: UOp, stage: Stage) -> Complaint:
    a, b = node.src
    if a.dtype is not b.dtype:
        return f"{node.op.name} compares {_names(node.src)}: both must be one dtype"
    if node.dtype is not dtypes.bool.vec(a.dtype.lanes):
        return f"{node.op.name} of {a.dtype.name} gives {node.dtype.name}, not bool"
    return None


def _ternary(node: UOp, stage: Stage) -> Complaint:
    if node.op is not Ops.WHERE:
        return _arithmetic(node, stage)
    condition, yes, no = node.src
    bools = dtypes.bool.vec(node.dtype.lanes)
    if condition.dtype is not bools:
        return f"the condition of a {node.dtype.name} WHERE is {condition.dtype.name}, not {bools.name}"
    if yes.dtype is not node.dtype or no.dtype is not node.dtype:
        return f"WHERE gives {node.dtype.name} from {_names((yes, no))}: all must be one dtype"
    return None


def _conversion(node: UOp, stage: Stage) -> Complaint:
    before, is_bitcast = node.src[0].dtype, node.op is Ops.BITCAST
    may_differ = is_bitcast and stage in _WITH_VECTORS  # the bits may be in a different number of lanes
    if not node.dtype.bits or not before.bits or (node.dtype.lanes != before.lanes and not may_differ):
        return f"{node.op.name} cannot convert {before.name} to {node.dtype.name}"
    is_same = node.dtype.bits * node.dtype.lanes == before.bits * before.lanes
    if is_bitcast and stage is not Stage.TENSOR and not is_same:
        return f"BITCAST from {before.name} to {node.dtype.name}: the sizes differ"
    return None


def _movement(node: UOp, stage: Stage) -> Complaint:
    before, arg = node.src[0].shape, node.arg
    if node.dtype is not node.src[0].dtype:
        return f"{node.op.name} converts {node.src[0].dtype.name} to {node.dtype.name}"
    match node.op:
        case Ops.RESHAPE:
            counts = numel(before), numel(arg)
            known = all(isinstance(count, int) for count in counts)
            return f"RESHAPE of {before} to {arg}: counts differ" if known and counts[0] != counts[1] else None
        case Ops.PERMUTE:
            return None if sorted(arg) == list(range(len(before))) else f"PERMUTE by {arg} of {len(before)} axes"
        case Ops.WINDOW | Ops.UNWINDOW:
            is_legal = len(arg) == (5 if node.op is Ops.WINDOW else 4) and 0 <= arg[0] < len(before)
            return None if is_legal else f"{node.op.name} by {arg}"
        case _:
            return None if len(arg) == len(before) else f"{node.op.name} by {arg} of {len(before)} axes"


# --- requirements of single ops
# -----------------------------------------------------------------------------------------
def _const(node: UOp, stage: Stage) -> Complaint:
    values = node.arg if isinstance(node.arg, tuple) else (node.arg,)
    if len(values) not in (1, node.dtype.lanes):
        return f"CONST with {len(values)} values for {node.dtype.lanes} lanes"
    kind: type[float] = float if node.dtype.is_float else bool if node.dtype.is_bool else int
    for value in values:
        if type(value) is not kind and not (kind is float and type(value) is Given):  # a user's number in a capture
            return f"CONST {value!r} is not a Python {kind.__name__}, as {node.dtype.name} requires"
        if not node.dtype.is_float and not node.dtype.min <= value <= node.dtype.max:
            return f"CONST {value!r} does not fit into {node.dtype.name}"
    return None


def _range(node: UOp, stage: Stage) -> Complaint:
    name, kind = node.arg[:2]
    size = node.src[0]
    if kind not in LEGAL_KINDS[stage]:
        return f"a loop of kind {kind} ({name}) is not legal at stage {stage}"
    if not size.dtype.is_int or size.dtype is not node.dtype:
        return f"RANGE {name} is {node.dtype.name} and its size {size.dtype.name}: both must be one int dtype"
    return None if size.bounds[1] >= 0 else f"RANGE {name} has the size {size.bounds[1]}"


def _are_ranges(nodes: Sequence[UOp]) -> bool:
    return all(node.op is Ops.RANGE for node in nodes)


def _reduce(node: UOp, stage: Stage) -> Complaint:
    op, rest = node.arg
    if not (isinstance(op, Op) and op.associative and op.commutative):
        return f"REDUCE folds with {op}, which is not associative and commutative"
    if stage is Stage.TENSOR:
        rank = len(node.src[0].shape)
        if len(node.src) != 1 or any(not 0 <= axis < rank for axis in rest):
            return f"REDUCE over axes {rest} of {rank}"
        rest = 1
    is_short = stage in (Stage.TENSOR, Stage.OPTIMIZED, Stage.VECTORIZED)  # unrolled completely: no loop is left
    if not 1 <= rest < len(node.src) + is_short or not _are_ranges(node.src[rest:]):
        return f"REDUCE of {rest} values needs them first and then its loops"
    if any(value.dtype is not node.dtype for value in node.src[:rest]):
        return f"REDUCE gives {node.dtype.name} from {_names(node.src[:rest])}"
    return None


def _memory_of(memory: UOp) -> UOp:
    while memory.op in (Ops.AFTER, Ops.CARRY) and memory.src:
        memory = memory.src[0]
    return memory


def _index(node: UOp, stage: Stage) -> Complaint:
    if len(node.src) not in (2, 3):
        return f"INDEX takes a buffer, an index and optionally a gate; it has {len(node.src)} sources"
    memory, index = _memory_of(node.src[0]), node.src[1]
    if memory.op not in _PLACES:
        return f"INDEX into {memory.op.name}: only PARAM and LOCAL are memory"
    if node.dtype.scalar is not memory.dtype.scalar:
        return f"INDEX gives {node.dtype.name} of a buffer of {memory.dtype.name}"
    if not index.dtype.is_int:
        return f"INDEX with an index of dtype {index.dtype.name}"
    if len(node.src) == 3:
        return None if node.src[2].dtype.is_bool else f"the gate of INDEX is {node.src[2].dtype.name}, not bool"
    count = memory.arg[1] if isinstance(memory.arg[1], int) else memory.arg[1].bounds[1]
    low, high = int(index.bounds[0]), int(index.bounds[1]) + node.dtype.lanes - 1
    if (low < 0 or high >= count) and not _has_wide_bounds(index.toposort()):
        return f"INDEX at {low}..{high} of a buffer of {count} elements, without a gate"
    return None


def _has_wide_bounds(at: Sequence[UOp]) -> bool:
    wide = (Ops.LOAD, Ops.AFTER, Ops.CDIV, Ops.CMOD)  # a predicated loop or one of variable length is also an exception
    return any(u.op in wide or (u.op is Ops.RANGE and (u.first_iteration is not None or u.src[0].ranges)) for u in at)


def _lanes_at(index: UOp) -> int:
    """Return the lanes that an INDEX reads: contiguous ones, one for each index, or one for each gate."""
    return max(s.dtype.lanes for s in (index, *index.src[1:]))


def _load(node: UOp, stage: Stage) -> Complaint:
    index = node.src[0]
    if index.op is not Ops.INDEX:
        return f"LOAD of {index.op.name}: its source must be an INDEX"
    want = index.dtype.vec(_lanes_at(index))
    return None if node.dtype is want else f"LOAD gives {node.dtype.name} where its INDEX gives {want.name}"


def _store(node: UOp, stage: Stage) -> Complaint:
    index, value = node.src
    if index.op is not Ops.INDEX or node.dtype is not dtypes.void:
        return f"STORE ({node.dtype.name}) to {index.op.name}: it needs an INDEX and gives nothing"
    want = index.dtype.vec(_lanes_at(index))
    return None if value.dtype is want else f"STORE of {value.dtype.name} where its INDEX wants {want.name}"


def _after(node: UOp, stage: Stage) -> Complaint:
    if not node.src or _memory_of(node).op not in (Ops.REG, *_PLACES) or node.dtype is not node.src[0].dtype:
        return "AFTER is of a REG, a LOCAL or a PARAM, in its dtype"
    effects = node.arg
    if not isinstance(effects, int) or not 1 <= effects < len(node.src) or not _are_ranges(node.src[1 + effects :]):
        return f"AFTER of {effects} effects needs them after its memory, and then its loops"
    return None


def _vector(node: UOp, stage: Stage) -> Complaint:
    lanes = [s.dtype.lanes for s in node.src]
    match node.op:
        case Ops.BROADCAST:
            is_legal = lanes == [1] and node.dtype.lanes > 1
        case Ops.LANES:
            is_legal = set(lanes) == {1} and len(lanes) == node.dtype.lanes
        case Ops.LANE:
            is_legal = node.dtype.lanes == 1 and 0 <= node.arg < lanes[0]
        case Ops.FOLD:
            is_legal = node.dtype.lanes == 1 and isinstance(node.arg, Op) and node.arg.associative
        case Ops.SHUFFLE:
            picked = node.arg if isinstance(node.arg, tuple) else ()
            is_legal = len(picked) == node.dtype.lanes and all(0 <= lane < sum(lanes) for lane in picked)
        case Ops.TABLE:
            is_legal = node.src[0].dtype is dtypes.uint8.vec(node.dtype.lanes) and node.dtype.scalar in _BYTES
            is_legal &= (
                len(node.arg) == 16
                if node.arg
                else [s.dtype for s in node.src[1:]] in ([node.dtype] * 2, [node.dtype] * 4)
            )
        case Ops.DOT:
            return _dot(node)
        case Ops.MMA:
            return _mma(node)
        case _:
            return None
    if node.op is not Ops.TABLE and any(s.dtype.scalar is not node.dtype.scalar for s in node.src):
        return f"{node.op.name} gives {node.dtype.name} from {_names(node.src)}: the scalars differ"
    return None if is_legal else f"{node.op.name} {node.arg} gives {node.dtype.name} from {_names(node.src)}"


def _dot(node: UOp) -> Complaint:
    a, b, c = (s.dtype for s in node.src)
    is_legal = DOT_SUMS.get(a.scalar) is DOT_SUMS.get(b.scalar) is c.scalar and c is node.dtype
    is_legal = is_legal and a.lanes == b.lanes and {s.size_bytes for s in (a, b)} == {c.size_bytes}
    return None if is_legal else f"DOT gives {node.dtype.name} from {_names(node.src)}"


def _mma(node: UOp) -> Complaint:
    m, n, k, group = node.arg
    lanes = [s.dtype.lanes for s in node.src]
    is_legal = lanes == [m * k, k * n, m * n] and node.src[2].dtype is node.dtype and k % group == 0
    return None if is_legal else f"MMA {node.arg} gives {node.dtype.name} from {_names(node.src)}"


_Row: TypeAlias = tuple[Callable[[UOp], bool], Callable[[UOp], str]]
_SIMPLE: Final[dict[Op, _Row]] = {  # condition, and the message if it is false
    Ops.VARIABLE: (lambda u: u.arg[1] <= u.arg[2],
                   lambda u: f"VARIABLE {u.arg[0]} from {u.arg[1]} to {u.arg[2]} has no value"),
    Ops.REG: (lambda u: u.src[:1] != () and u.src[0].dtype is u.dtype and _are_ranges(u.src[1:]),
              lambda u: f"REG {u.arg} needs a first value of {u.dtype.name}, then the loops that reset it"),
    Ops.CARRY: (lambda u: u.src[:1] != () and _memory_of(u).op in (Ops.REG, *_PLACES) and u.src[0].dtype is u.dtype
                and _are_ranges(u.src[1:]),
                lambda u: "CARRY is of a REG or of memory, in its dtype, and of loops"),
    Ops.SET: (lambda u: _memory_of(u.src[0]).op is Ops.REG and u.src[0].dtype is u.src[1].dtype
              and u.dtype is dtypes.void,
              lambda u: f"SET of {u.src[0].op.name} {u.src[0].dtype.name} to a value of {u.src[1].dtype.name}"),
    # a number: of one unrolled instance
    Ops.LOCAL: (lambda u: _are_ranges([s for s in u.src if not s.is_const]) and u.arg[1] > 0,
                lambda u: f"LOCAL {u.arg} needs a size, and loops as sources"),
    Ops.TAKE: (lambda u: u.src[1].dtype.is_int, lambda u: f"TAKE at places of dtype {u.src[1].dtype.name}"),
    Ops.ASSIGN: (lambda u: u.src[1].dtype is u.dtype is u.src[0].dtype,
                 lambda u: f"ASSIGN gives {u.dtype.name} from {_names(u.src)}"),
    Ops.CHECK: (lambda u: u.src[1].dtype is dtypes.bool and u.src[1].shape == (), lambda u: "CHECK asks for one bool"),
    Ops.END: (lambda u: _are_ranges(u.src), lambda u: f"END of {u.src[0].op.name}"),
}  # fmt: skip


def _simple(node: UOp, stage: Stage) -> Complaint:
    holds, sentence = _SIMPLE[node.op]
    return None if holds(node) else sentence(node)


_BY_GROUP: Final[dict[OpGroup, Check]] = {
    OpGroup.UNARY: _arithmetic, OpGroup.BINARY: _arithmetic, OpGroup.COMPARE: _comparison, OpGroup.TERNARY: _ternary,
    OpGroup.CONVERT: _conversion, OpGroup.MOVEMENT: _movement, OpGroup.VECTOR: _vector,
}  # fmt: skip
_BY_OP: Final[dict[Op, Check]] = {
    **dict.fromkeys(_SIMPLE, _simple),
    Ops.CONST: _const,
    Ops.RANGE: _range,
    Ops.REDUCE: _reduce,
    Ops.INDEX: _index,
    Ops.LOAD: _load,
    Ops.STORE: _store,
    Ops.AFTER: _after,
}


# --- lists -----------------------------------------------------------------------------------------------------------
def _verify_list(nodes: Sequence[UOp], where: str) -> None:
    """Check that sources precede their uses and are in a loop that is still open, and that loops nest."""
    open_loops: list[UOp] = []
    loops_at: dict[UOp, tuple[UOp, ...]] = {}

    def fail(node: UOp, complaint: str) -> None:
        raise _error(nodes, node, Stage.LINEAR, where, complaint)

    for node in nodes:
        if node in loops_at:
            fail(node, f"{node.op.name} is in the list twice")
        for s in _needed(node):
            if s not in loops_at:
                fail(node, f"{node.op.name} comes before its source {s!r}")
            elif loops_at[s] != tuple(open_loops[: len(loops_at[s])]):
                fail(node, f"{node.op.name} uses {s!r}, whose loop is closed")
        if node.op is Ops.END and (not open_loops or open_loops.pop() is not node.src[0]):
            fail(node, "END of a loop that is not the innermost open one")
        loops_at[node] = tuple(open_loops)
        if node.op is Ops.RANGE:
            loops_at[node] = (*open_loops, node)
            open_loops.append(node)
    if open_loops:
        fail(open_loops[-1], f"the loop {open_loops[-1].arg[0]} is never closed")


def _needed(node: UOp) -> tuple[UOp, ...]:
    """Return the sources whose value is used here: an AFTER only waits for its effects and loops."""
    return node.src[:1] if node.op is Ops.AFTER else node.src
