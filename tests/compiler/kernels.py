"""Small graphs and kernels for the tests of the compiler, and three ways to run them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import inf
from typing import Any

import numpy as np

from kernmill.compiler import Action, Draft, lower, optimize_loops, plan_graph
from kernmill.ir import (
    Copy,
    DType,
    GraphPlan,
    Kernel,
    Ops,
    Target,
    UOp,
    broadcast_to,
    const,
    dtypes,
    elementwise,
    evaluate,
    iota,
    numel,
    permute,
    reduce_axes,
    reshape,
    window,
)
from kernmill.renderers import LLVM_OPS, PYTHON_OPS, signature
from kernmill.runtime import Buffer, Call, get_device

Array = np.ndarray[Any, Any]
F32 = dtypes.float32

VECTORS = Target(
    "vectors",
    vector_bytes=64,
    vector_registers=32,
    instructions="x86",
    ops=LLVM_OPS,
    compute_dtypes=frozenset(dtypes.data) - {dtypes.bfloat16, dtypes.float16},
    has_threads=True,
    has_masks=True,
    l1_bytes=32 << 10,
    l2_bytes=1 << 20,
)
SCALARS = Target("scalars", ops=PYTHON_OPS)


def lowered(
    ast: UOp, target: Target, actions: Sequence[Action] | None = None, *, is_checked: bool = False
) -> list[UOp]:
    """Linear UOps of a kernel, optimized by these actions; None: by the heuristic."""
    return lower(optimize_loops(ast, target, actions), target, ast, is_checked=is_checked)


# --- graphs ----------------------------------------------------------------------------------------------------------
def data(slot: int, *shape: int, dtype: DType = F32) -> UOp:
    """An input of the graph."""
    return reshape(UOp(Ops.PARAM, dtype, (), (slot, numel(shape))), shape)


def total(x: UOp, *axes: int) -> UOp:
    return reduce_axes(x, Ops.ADD, axes)


def matmul(a: UOp, b: UOp) -> UOp:
    rows, inner = a.shape
    columns = b.shape[1]
    left = reshape(a, (rows, 1, inner))
    right = reshape(permute(b, (1, 0)), (1, columns, inner))
    return reshape(total(elementwise(Ops.MUL, left, right), 2), (rows, columns))


def relu(x: UOp) -> UOp:
    return elementwise(Ops.MAX, x, const(F32, 0.0))


def softmax(x: UOp, axis: int = -1) -> UOp:
    axis %= len(x.shape)
    e = elementwise(Ops.SUB, x, reduce_axes(x, Ops.MAX, (axis,))).alu(Ops.EXP)
    return elementwise(Ops.DIV, e, total(e, axis))


def triangle(rows: int, columns: int, *, is_open: bool = False) -> UOp:
    """Sums of the lower triangle of a matrix."""
    compare = Ops.LT if is_open else Ops.LE
    seen = elementwise(compare, reshape(iota(columns), (1, columns)), reshape(iota(rows), (rows, 1)))
    return total(elementwise(Ops.WHERE, seen, data(0, rows, columns), const(F32, 0.0)), 1)


def attention(q: UOp, k: UOp, v: UOp, is_causal: bool = False) -> UOp:
    """One head, divided by the sums at the end; weights are rounded to the type of q."""
    rows, columns, kind = int(q.shape[0]), int(k.shape[0]), q.dtype  # type: ignore[arg-type]
    q, k, v = (x.cast(F32) for x in (q, k, v))
    scores = matmul(q, permute(k, (1, 0)))
    seen = elementwise(Ops.LE, reshape(iota(columns), (1, columns)), reshape(iota(rows), (rows, 1)))

    def visible(x: UOp, otherwise: float) -> UOp:
        return elementwise(Ops.WHERE, seen, x, const(F32, otherwise)) if is_causal else x

    scores = visible(scores, -inf)
    weights = elementwise(Ops.SUB, scores, reduce_axes(visible(scores, -inf), Ops.MAX, (1,))).alu(Ops.EXP)
    weights = weights.cast(kind).cast(F32)
    terms = elementwise(Ops.MUL, reshape(weights, (rows, columns, 1)), reshape(v, (1, *v.shape)))
    if is_causal:
        terms = elementwise(Ops.WHERE, reshape(seen, (rows, columns, 1)), terms, const(F32, 0.0))
    return elementwise(Ops.DIV, reshape(total(terms, 1), (rows, v.shape[1])), total(visible(weights, 0.0), 1))


def layer_norm(x: UOp) -> UOp:
    last = len(x.shape) - 1
    size = float(x.shape[last])  # type: ignore[arg-type]
    centred = elementwise(Ops.SUB, x, total(x, last) * (1 / size))
    variance = total(elementwise(Ops.MUL, centred, centred), last) * (1 / size)
    return elementwise(Ops.DIV, centred, (variance + 1e-5).alu(Ops.SQRT))


def convolution(x: UOp, w: UOp, stride: int = 1) -> UOp:
    """Channels first: x (n, c, h, w), w (o, c, k, k)."""
    n, c = x.shape[:2]
    o, _, k, _ = w.shape
    views = window(window(x, 2, k, stride), 3, k, stride)  # type: ignore[arg-type]
    oh, ow = views.shape[2], views.shape[3]
    left = reshape(views, (n, 1, c, oh, ow, k, k))
    right = reshape(w, (1, o, c, 1, 1, k, k))
    return reshape(total(elementwise(Ops.MUL, left, right), 2, 5, 6), (n, o, oh, ow))


# --- schedules -------------------------------------------------------------------------------------------------------
def scheduled(
    *roots: UOp, in_place: Sequence[int] = (), devices: Sequence[str] = ("LLVM",) * 8, has_unit: bool = False
) -> GraphPlan:
    packers = frozenset(devices if has_unit else ())
    return plan_graph(Draft(roots, devices, frozenset(in_place), "LLVM", packers=packers)).plan


def kernels(schedule: GraphPlan) -> list[Kernel]:
    return [item for item in schedule.items if isinstance(item, Kernel)]


def names(*roots: UOp, in_place: Sequence[int] = ()) -> list[str]:
    return [kernel.name for kernel in kernels(scheduled(*roots, in_place=in_place))]


def only(*roots: UOp, has_unit: bool = False) -> UOp:
    """The AST of a graph that is one kernel."""
    (kernel,) = kernels(scheduled(*roots, has_unit=has_unit))
    return kernel.ast


def numpy_name(dtype: DType) -> str:
    return {"bfloat16": "float32"}.get(dtype.name, dtype.name)


def params(ast: UOp) -> list[UOp]:
    return sorted({node for node in ast.toposort() if node.op is Ops.PARAM}, key=lambda node: int(node.arg[0]))


def inputs(program: UOp | GraphPlan, seed: int = 0) -> list[Array]:
    """Random values for the buffers of a kernel or a schedule, its results included."""
    rng = np.random.default_rng(seed)
    if isinstance(program, GraphPlan):
        wanted = [(plan.dtype, plan.numel) for plan in program.buffers]
    else:
        wanted = [(param.dtype, int(param.arg[1])) for param in params(program)]
    return [
        rng.uniform(-2, 2, count).astype(numpy_name(dtype))
        if dtype.is_float
        else rng.integers(0, 2, count).astype(dtype.name)
        for dtype, count in wanted
    ]


def run_schedule(schedule: GraphPlan, given: Sequence[Array], seed: int = 0) -> list[Array]:
    """Every buffer after the schedule ran in the evaluator; `given` are the inputs by slot."""
    arrays = inputs(schedule, seed)
    for number, plan in enumerate(schedule.buffers):
        if plan.slot is not None:
            arrays[number] = given[plan.slot].copy()
        elif plan.part is not None:
            whole, first = plan.part
            arrays[number] = arrays[whole][first : first + plan.numel]
    for item in schedule.items:
        if isinstance(item, Copy):
            arrays[item.target][:] = arrays[item.source]
        else:
            evaluate(item.ast, {param: arrays[item.buffers[param.arg[0]]] for param in params(item.ast)})
    return arrays


def run_graph(root: UOp, given: Sequence[Array]) -> Array:
    """What the graph means."""
    leaves = [node for node in root.toposort() if node.op is Ops.PARAM]
    return evaluate(root, {leaf: given[leaf.arg[0]] for leaf in leaves})


# --- kernels ---------------------------------------------------------------------------------------------------------
def run_ast(ast: UOp, arrays: Sequence[Array]) -> Array:
    """Buffer 0 after the kernel ran in the evaluator."""
    mine = [array.copy() for array in arrays]
    evaluate(ast, {param: mine[param.arg[0]] for param in params(ast)})
    return mine[0]


def run_on(device: str, ast: UOp, arrays: Sequence[Array], actions: Sequence[Action] | None = None) -> Array:
    """Buffer 0 after the kernel ran on a device, every stage verified."""
    machine = get_device(device)
    return run_uops(device, lowered(ast, machine.target, actions, is_checked=True), arrays, params(ast))


def run_uops(device: str, uops: list[UOp], arrays: Sequence[Array], slots: Sequence[UOp]) -> Array:
    machine = get_device(device)
    mine = [_aligned(np.concatenate([array, array[:1]])) for array in arrays]  # one more: it must stay as it is
    program = machine.load("k", machine.compile("k", machine.renderer.render("k", uops)))
    buffers = tuple(Buffer(device, p.dtype, int(p.arg[1]), a, a.ctypes.data) for p, a in zip(slots, mine, strict=True))
    threads = signature(uops).threads
    assert isinstance(threads, int)
    machine.run([Call(program, buffers, (), threads)])
    for array, before in zip(mine, arrays, strict=True):
        assert array[-1] == before[0], "a kernel wrote behind its buffer"
    return mine[0][:-1]


def _aligned(array: Array) -> Array:
    """A copy where buffers start: whole lines, which streaming stores rely on."""
    raw = np.empty(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    mine = raw[start : start + array.nbytes].view(array.dtype)
    mine[:] = array
    return mine


def close(got: Array, want: Array, limit: float = 2e-5) -> None:
    """Equal, up to the order of sums."""
    scale = max(1.0, float(np.abs(want).max(initial=0.0)))
    np.testing.assert_allclose(got.reshape(-1), want.reshape(-1), rtol=0, atol=limit * scale)


@cache
def small_kernels() -> dict[str, UOp]:
    """One kernel each: plain, summed by row and by column, products, masks, two reductions, gathers, other dtypes."""
    x, y = data(0, 6, 19), data(1, 6, 19)
    i32 = dtypes.int32
    return {
        "map": only(elementwise(Ops.ADD, x, y) * 2.0),
        "transpose": only(permute(x, (1, 0)) + 1.0),
        "row_sum": only(total(x, 1)),
        "column_sum": only(total(x, 0)),
        "row_max": only(reduce_axes(x, Ops.MAX, (1,))),
        "all": only(total(x, 0, 1)),
        "matmul": only(matmul(data(0, 6, 9), data(1, 9, 20))),
        "softmax": only(softmax(x)),
        "layer_norm": only(layer_norm(x)),
        "convolution": only(relu(convolution(data(0, 1, 2, 7, 9), data(1, 3, 2, 3, 3)))),
        "broadcast": only(elementwise(Ops.MUL, x, broadcast_to(data(1, 19), (6, 19)))),
        "int_sum": only(reduce_axes(data(0, 5, 21, dtype=i32), Ops.ADD, (1,))),
        "xor": only(reduce_axes(data(0, 5, 21, dtype=dtypes.uint8), Ops.XOR, (1,))),
        "double": only(
            total(elementwise(Ops.MUL, data(0, 4, 17, dtype=dtypes.float64), data(1, 4, 17, dtype=dtypes.float64)), 1)
        ),
        "attention": only(attention(data(0, 26, 5), data(1, 25, 5), data(2, 25, 6))),
        "any": only(reduce_axes(data(0, 3, 18, dtype=dtypes.bool), Ops.OR, (1,))),
    }


def places_kernel() -> UOp:
    """Rows added up at the places that they name."""
    shape = (7, 21, 5)
    own, named = reshape(iota(7, dtypes.int32), (7, 1, 1)), reshape(data(1, 21, dtype=dtypes.int32), (1, 21, 1))
    hit = broadcast_to(elementwise(Ops.EQ, own, named), shape)
    terms = broadcast_to(reshape(data(0, 21, 5), (1, 21, 5)), shape)
    return only(total(elementwise(Ops.WHERE, hit, terms, broadcast_to(const(F32, 0.0), shape)), 1))


def causal_kernel() -> UOp:
    """Attention under a mask. Its loops are trimmed, and the evaluator does no loop whose end is a value."""
    return only(attention(data(0, 22, 4), data(1, 22, 4), data(2, 22, 3), is_causal=True))
