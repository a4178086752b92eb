"""What each pass does, as text: a small kernel before and after it, and a small graph through the graph half.

Read tests/golden/compiler/passes beside the row of the pass in docs/pipeline.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from kernmill.compiler import (
    GRAPH_PIPELINE,
    PIPELINE,
    BuiltKernels,
    Draft,
    Fusion,
    OrderedKernels,
    Placed,
    StoredNodes,
    apply_actions,
    choose,
    parse_schedule,
)
from kernmill.ir import (
    Context,
    GraphPlan,
    Item,
    Kernel,
    MemoryPlan,
    Ops,
    Target,
    UOp,
    assign,
    const,
    dtypes,
    elementwise,
    expand,
    permute,
    print_uops,
    reshape,
    shrink,
    take,
)
from kernmill.runtime import get_device
from tests.compiler.graph.test_pass_slices import recurrent
from tests.compiler.graph.test_place import table
from tests.compiler.kernel.test_partition_loops import joined
from tests.compiler.kernel.test_peel_loops import running_sums
from tests.compiler.kernels import (
    SCALARS,
    VECTORS,
    attention,
    causal_kernel,
    convolution,
    data,
    matmul,
    only,
    relu,
    small_kernels,
    total,
)
from tests.compiler.lower.test_combine_loads import words
from tests.compiler.lower.test_hoist_shifts import ONE, codes_by_x
from tests.compiler.lower.test_insert_prefetches import STAGED
from tests.compiler.lower.test_lookup_in_registers import TARGET as TABLES
from tests.compiler.lower.test_lookup_in_registers import chosen, low
from tests.compiler.lower.test_scalarize_gathers import TABLE, numbers
from tests.compiler.tiles import TILES, laid
from tests.conftest import Golden

DOTS = replace(VECTORS, dots=frozenset({(dtypes.uint8, dtypes.int8)}))

NO_MAX = replace(SCALARS, ops=SCALARS.ops - {Ops.MAX})


# --- the loop half ---------------------------------------------------------------------------------------------------
class Case(NamedTuple):
    """A kernel with a schedule (None: the heuristic's), on a target (None: the reference device as a GPU)."""

    title: str
    ast: UOp
    schedule: str | None = ""
    target: Target | None = SCALARS


def byte_product(rows: int, inner: int, columns: int) -> UOp:
    left, right = data(0, rows, inner, dtype=dtypes.uint8), data(1, inner, columns, dtype=dtypes.int8)
    return only(matmul(left.cast(dtypes.int32), right.cast(dtypes.int32)))


def half_product(rows: int, inner: int, columns: int) -> UOp:
    left, right = data(0, rows, inner, dtype=dtypes.float16), data(1, inner, columns, dtype=dtypes.float16)
    return only(matmul(left.cast(dtypes.float32), right.cast(dtypes.float32)))


def add(shape: tuple[int, ...]) -> UOp:
    return only(elementwise(Ops.ADD, data(0, *shape), data(1, *shape)))


ROWS = only(total(data(0, 6, 32), 1))
PRODUCT = only(matmul(data(0, 4, 8), data(1, 8, 16)))
CASES: dict[str, list[Case]] = {
    "merge_loops": [Case("all elements of two matrices: two loops become one", add((6, 16)))],
    "optimize": [Case("a matrix product: vectors of columns, a tile of rows", PRODUCT, None, VECTORS)],
    "trim_loops": [Case("attention under a mask: the inner loops end at the diagonal", causal_kernel())],
    "peel_loops": [Case("running sums: the first block is apart, without its condition", only(running_sums(64)))],
    "find_mmas": [
        Case("a bfloat16 product in blocks: a tile of it is one MMA", laid(64, 64, 64), None, TILES)
    ],
    "distribute_work_items": [
        Case("rows of a sum: the grid and the work-items are quotients of one id", ROWS,
             "local i0 2; share k0 8; grid i0", None)
    ],
    "convert_packed": [
        Case("a float16 product: the panel is converted while it is packed", half_product(8, 8, 32),
             "vectorize i1 16; unroll i0 4; order i1 i0; stage 2 k0 i1.v", VECTORS)
    ],
    "partition_loops": [Case("two joined matrices: one loop for each piece", only(joined(4, 20, 12)))],
    "expand_loops": [Case("a row sum, unrolled twice", ROWS, "unroll k0 2")],
    "vectorize": [Case("all elements of two matrices, 16 at a time", add((6, 16)), "vectorize i0 16", VECTORS)],
    "shuffle_lanes": [
        Case("a transposed matrix: rows are loaded, lanes are shuffled",
             only(permute(data(0, 8, 8), (1, 0)) + 1.0), "vectorize i1 4; unroll i0 4", VECTORS)
    ],
    "combine_loads": [Case("two bytes are one load", only(words(dtypes.uint16)), "vectorize i0 16", VECTORS)],
    "find_dots": [
        Case("a product of bytes: four terms are one DOT", byte_product(2, 8, 16), "vectorize i1 16; unroll k0 4", DOTS)
    ],
    "hoist_shifts": [
        Case("codes of four bits are multiplied where they are in their byte", codes_by_x(4, first=4), ONE, DOTS)
    ],
    "lookup_in_registers": [Case("a table of 16 bytes is one lookup", only(chosen(low())), "vectorize i0 64", TABLES)],
    "scalarize_gathers": [
        Case("indices that are bytes in memory: each lane has its address", only(take(TABLE, numbers(1, 64), 0)),
             "vectorize i0 4", VECTORS)
    ],
    "lower_reduces": [Case("a row sum: an accumulator that a loop updates", ROWS, "vectorize k0 16", VECTORS)],
    "insert_prefetches": [
        Case("a product whose panel is packed: the next panel is prefetched",
             only(matmul(data(0, 8, 80), data(1, 80, 4096))), f"{STAGED}; prefetch {16 * 4096 * 4}", VECTORS)
    ],
    "decompose": [Case("a maximum, on a target without MAX", only(relu(data(0, 16))), "", NO_MAX)],
    "simplify": [Case("the largest element of a row, in vectors", small_kernels()["row_max"], None, VECTORS)],
    "lower_index": [Case("a slice of a matrix", only(shrink(data(0, 8, 8), ((2, 6), (1, 5))) + 1.0))],
    "linearize": [Case("a row sum: each node in the block of its innermost loop", ROWS, "")],
    "block_sums": [Case("a long sum: each block of terms has an accumulator", only(total(data(0, 2, 4096), 1)))],
    "place_barriers": [Case("a row sum that work-items share", ROWS, "share k0 8; grid i0", None)],
}  # fmt: skip


def uops_text(root: UOp | list[UOp]) -> str:
    """The nodes without the lines that made them."""
    return "".join(f"{line.partition('  # ')[0]}\n" for line in print_uops(root).splitlines())


def before_and_after(case: Case, name: str) -> str:
    """The kernel before and after the pass, and its schedule where that has a part in it."""
    if case.target is None:
        with Context(TARGET="gpu"):
            target = get_device("PYTHON").target
    else:
        target = case.target
    schedule = None if case.schedule is None else parse_schedule(case.schedule)
    now: Any = case.ast
    written = ""
    for step in PIPELINE:
        if step.name == "optimize":
            written = "; ".join(map(str, choose(now, target).actions if schedule is None else schedule))
        is_given = step.name == "optimize" and schedule is not None
        after = apply_actions(now, schedule or ()) if is_given else step.run(now, target)
        if step.name == name:
            assert uops_text(after) != uops_text(now), "the pass has no effect on this kernel"
            head = f"{case.title}\nschedule: {written}" if written else case.title
            return f"{head}\n\nbefore:\n\n{uops_text(now)}\nafter:\n\n{uops_text(after)}"
        now = after
    raise ValueError(name)


@pytest.mark.parametrize("name", [step.name for step in PIPELINE])
def test_loop(name: str, golden: Golden) -> None:
    (step,) = (step for step in PIPELINE if step.name == name)
    assert "\n\n".join([f"{name}: {step.why}", *(before_and_after(case, name) for case in CASES[name])]) == golden


# --- the graph half --------------------------------------------------------------------------------------------------
class Graph(NamedTuple):
    """Roots of a closed graph, the slots that may be overwritten, and the device of each slot."""

    title: str
    roots: Sequence[UOp]
    in_place: Sequence[int] = ()
    devices: Sequence[str] = ("LLVM",) * 5


X = data(0, 4, 5)
ONES = UOp(Ops.DETACH, dtypes.float32, (expand(reshape(const(dtypes.float32, 1.0), (1, 1)), (4, 5)),), 1)
GRAPHS: dict[str, Graph] = {
    "split_reduce": Graph("the sum of a long vector", [total(data(0, 1 << 20), 0)]),
    "place": Graph("a product of data on two devices: the smaller operand is copied",
                   [matmul(data(0, 64, 64), data(1, 64, 2))], devices=("A", "B")),
    "separate_constants": Graph("a result of constants, read on another device",
                                [ONES, UOp(Ops.COPY, X.dtype, (X,), "CL") * ONES]),
    "find_devices": Graph("ones, added to data", [X + 1.0]),
    "choose_stored": Graph("two results, one of them a view", [permute(relu(X), (1, 0)), total(X, 1)]),
    "choose_in_place": Graph("a tensor is doubled in place", [assign(X, X * 2.0)], [0]),
    "fuse": Graph("attention: one kernel, with row buffers",
                  [attention(data(0, 26, 5), data(1, 25, 5), data(2, 25, 6))]),
    "build_kernels": Graph("a convolution: the window is index arithmetic",
                           [convolution(data(0, 1, 2, 6, 6), data(1, 3, 2, 3, 3))]),
    "order_kernels": Graph("a tensor is read before it is overwritten", [assign(X, data(1, 4, 5)), total(X, 1)], [0]),
    "find_hazards": Graph("two tensors get each other's values: one of them needs a separate buffer",
                          [assign(X, data(1, 4, 5)), assign(data(1, 4, 5), X)], [0, 1]),
    "merge_kernels": Graph("two results of one shape", [X + 1.0, X * 2.0]),
    "keep_copies": Graph("data are copied and doubled", [UOp(Ops.COPY, X.dtype, (X,), "CL") * 2.0]),
    "pass_slices": Graph("five steps of a recurrent layer: each reads its rows of one kernel's result", [recurrent(0)]),
    "plan_memory": Graph("three products: the first and the third intermediate share memory",
                         [matmul(matmul(matmul(matmul(data(0, 64, 64), data(1, 64, 64)), data(2, 64, 64)),
                                        data(3, 64, 64)), data(4, 64, 64))]),
}  # fmt: skip


def item_text(item: Item) -> str:
    if isinstance(item, Kernel):
        return f"{item.name} on {item.device}: buffers {list(item.buffers)}, writes {list(item.outputs)}"
    return f"copy {item.source} -> {item.target}"


def node_text(node: UOp) -> str:
    arg = "" if node.arg is None else f" {node.arg}"
    return f"{node.op.name} {node.dtype.name} {node.shape}{arg}"


def text_of(made: Any) -> str:
    """What a pass made, in a few lines."""
    match made:
        case Fusion():
            return "\n".join([
                *(f"kernel {n}: {node_text(root.node)}" for n, root in enumerate(made.roots)),
                *(f"kept by row: {node_text(node)}" for node in made.row_buffers),
            ])  # fmt: skip
        case GraphPlan():
            return "\n".join([
                *map(item_text, made.items),
                *(f"buffer {n}: {b.numel} {b.dtype.name} on {b.device}"
                  + (f", input {b.slot}" if b.slot is not None else "") + (f", part {b.part}" if b.part else "")
                  + (", result" if b.is_output else "") + (", kept" if b.is_kept else "")
                  for n, b in enumerate(made.buffers)),
            ])  # fmt: skip
        case MemoryPlan():
            return "\n".join([*(f"buffer {n} at byte {at}" for n, at in sorted(made.offsets.items())),
                              f"arena: {made.arena_bytes}, without sharing {made.unplanned_bytes} bytes"])  # fmt: skip
        case Placed():
            return text_of(made.roots) + "devices of nodes without data:\n" + text_of(made.devices)
        case StoredNodes():
            return "\n".join([*(f"stored: {node_text(node)}" for node in sorted(made.nodes, key=node_text)),
                              *(f"result: {node_text(node)}" for node in made.results)])  # fmt: skip
        case BuiltKernels():
            return "\n".join(f"{kernel.name}:\n{uops_text(kernel.ast)}" for kernel in made.kernels.values())
        case OrderedKernels():
            return "\n".join(map(item_text, made.items))
        case Mapping():
            return "\n".join(f"{node_text(node)} -> {value if isinstance(value, str) else node_text(value)}"
                             for node, value in made.items())  # fmt: skip
        case frozenset():
            return "\n".join(sorted(map(node_text, made))) or "none"
        case list():
            return uops_text(UOp(Ops.SINK, dtypes.void, tuple(made)))
        case _:
            raise TypeError(type(made).__name__)


def run_graph_half(graph: Graph, name: str) -> tuple[Any, Any]:
    """The field of the draft that the pass makes, before it (None: there is none) and after its first run."""
    draft = Draft(graph.roots, graph.devices, frozenset(graph.in_place), graph.devices[0])
    if len(set(graph.devices)) > 1:
        draft.device_table = table(graph.devices)
    for step in GRAPH_PIPELINE:
        before = getattr(draft, step.makes, None)
        setattr(draft, step.makes, step.run(draft))
        if step.name == name:
            return before, getattr(draft, step.makes)
    raise ValueError(name)


@pytest.mark.parametrize("name", [step.name for step in GRAPH_PIPELINE])
def test_graph(name: str, golden: Golden) -> None:
    (step,) = (step for step in GRAPH_PIPELINE if step.name == name)
    graph = GRAPHS[name]
    before, after = run_graph_half(graph, name)
    parts = [f"{name}: {step.why}", graph.title, f"the graph:\n\n{text_of([*graph.roots])}"]
    if before is not None and step.makes not in ("roots", "refused"):
        parts.append(f"{step.makes} before:\n\n{text_of(before)}")
    assert "\n\n".join([*parts, f"{step.makes}:\n\n{text_of(after)}"]) == golden
