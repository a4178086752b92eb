"""Kernel borders: how many kernels a graph becomes, and where one ends."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from kernmill.ir import (
    Ops,
    UOp,
    broadcast_to,
    const,
    dtypes,
    elementwise,
    iota,
    pad,
    permute,
    reduce_axes,
    reshape,
    shrink,
    window,
)
from tests.compiler.kernels import (
    F32,
    attention,
    close,
    convolution,
    data,
    inputs,
    kernels,
    layer_norm,
    matmul,
    names,
    only,
    relu,
    run_graph,
    run_schedule,
    scheduled,
    softmax,
    total,
)


def log_softmax(x: UOp) -> UOp:
    shifted = elementwise(Ops.SUB, x, reduce_axes(x, Ops.MAX, (1,)))
    return elementwise(Ops.SUB, shifted, total(shifted.alu(Ops.EXP), 1).alu(Ops.LOG))


def rms_norm(x: UOp) -> UOp:
    mean = total(elementwise(Ops.MUL, x, x), 1) * (1 / 64)
    return elementwise(Ops.DIV, x, (mean + 1e-5).alu(Ops.SQRT))


def pooled(x: UOp) -> UOp:
    n, c, h, w = x.shape
    return reduce_axes(reshape(x, (n, c, h // 2, 2, w // 2, 2)), Ops.MAX, (3, 5))


fuse = importlib.import_module("kernmill.compiler.graph.fuse")  # not the function of that name

X, Y = data(0, 32, 64), data(1, 32, 64)
A, B = data(0, 32, 48), data(1, 48, 64)

# the gradient of a convolution's image, as its windows are added up
PADDED_SUMS = total(pad(reshape(total(elementwise(
    Ops.MUL, data(0, 16, 1, 4, 32), data(1, 1, 24, 4, 32)), 3), (16, 24, 4)), ((0, 0), (0, 0), (1, 1))), 2)  # fmt: skip
BLOCKS = data(0, 1, 4, 4, 4, 2, 2)


def interleaved(blocks: UOp) -> UOp:
    """An image from its blocks of 2x2: the gradient of a pool."""
    return reshape(permute(blocks, (0, 1, 2, 4, 3, 5)), (1, 4, 8, 8))


ONE = {
    "softmax": softmax(X),
    "layer norm": layer_norm(X),
    "layer norm with weights": elementwise(Ops.ADD, elementwise(Ops.MUL, layer_norm(X), data(1, 64)), data(2, 64)),
    "rms norm": rms_norm(X),
    "log softmax": log_softmax(X),
    "a chain": relu(elementwise(Ops.MUL, X, Y) + 1.0).alu(Ops.EXP).alu(Ops.SQRT),
    "matmul": matmul(A, B),
    "matmul, bias, relu": relu(elementwise(Ops.ADD, matmul(A, B), data(2, 64))),
    "a sum of squares": total(elementwise(Ops.MUL, X, X), 1),
    "two sums over the same rows": elementwise(Ops.ADD, total(X, 1), total(elementwise(Ops.MUL, X, X), 1)),
    "a sum of sums": total(total(X, 1), 0),
    "movement alone": permute(pad(X, ((1, 1), (0, 0))), (1, 0)) * 2.0,
    "convolution, bias, relu": relu(
        elementwise(Ops.ADD, convolution(data(0, 2, 3, 10, 10), data(1, 4, 3, 3, 3)), data(2, 1, 4, 1, 1))),
    "products of a batch, added up": total(total(elementwise(
        Ops.MUL, reshape(data(0, 8, 16, 32), (8, 16, 32, 1)), reshape(data(1, 8, 16, 48), (8, 16, 1, 48))), 1), 0),
    "cheap steps read twice": elementwise(Ops.MUL, X + 1.0, permute(permute(X + 1.0, (1, 0)), (1, 0)) * 3.0),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE)
def test_one_kernel(name: str) -> None:
    assert len(names(ONE[name])) == 1


MORE = {
    "matmul, then softmax": (softmax(matmul(A, B)), 2),
    "matmul, then matmul": (matmul(matmul(A, B), data(2, 64, 8)), 2),
    "matmul, then row sums": (total(matmul(A, B), 1), 2),
    "matmul, then the sum of all": (total(matmul(A, B), 0, 1), 2),
    "convolution, then sums over places": (
        total(convolution(data(0, 2, 8, 10, 10), data(1, 16, 8, 3, 3)), 2, 3), 2),
    "matmul whose result outgrows its data, then row maxima": (
        reduce_axes(matmul(data(0, 64, 16), data(1, 16, 64)) * 2.0, Ops.MAX, (1,)), 2),
    "weights of attention, masked": (
        elementwise(Ops.MUL, softmax(matmul(data(0, 64, 4), data(1, 4, 64))), data(2, 64, 64)), 2),
    "mean, then matmul": (
        matmul(reshape(total(data(0, 16, 64, 32), 1) * (1 / 64), (16, 32)), data(1, 32, 64)), 2),
    "maxima, then their sum": (total(reduce_axes(data(0, 16, 64, 128), Ops.MAX, (1,)), 2), 2),
    "layer norm, then matmul": (matmul(layer_norm(data(0, 32, 64)), data(1, 64, 48)), 2),
    "pooling, then matmul": (matmul(reshape(pooled(data(0, 8, 4, 8, 8)), (8, 64)), data(1, 64, 32)), 2),
    "attention of normalized keys": (
        attention(layer_norm(data(0, 64, 16)), layer_norm(data(1, 64, 16)), data(2, 64, 16)), 3),
    "column sums, used by every row": (elementwise(Ops.SUB, data(0, 512, 512), total(data(0, 512, 512), 0)), 2),
    "convolution, then pooling": (pooled(relu(convolution(data(0, 2, 3, 10, 10), data(1, 4, 3, 3, 3)))), 2),
    "a sum of padded sums of products, divided": (
        elementwise(Ops.DIV, reshape(PADDED_SUMS, (16, 24, 1)), data(2, 16, 24, 32)), 2),
    "blocks in another order, then a convolution": (
        convolution(interleaved(BLOCKS.alu(Ops.EXP)), data(1, 4, 4, 3, 3)), 2),
    "a value stored on purpose": (permute(UOp(Ops.CONTIGUOUS, F32, (X + 1.0,)), (1, 0)) * 2.0, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", MORE)
def test_more_kernels(name: str) -> None:
    root, count = MORE[name]
    assert len(names(root)) == count


@pytest.mark.parametrize("width", [2, 16])
def test_attention_is_one_kernel_where_scores_outgrow_its_data(width: int) -> None:
    narrow, wide = (tuple(data(slot, 64, size) for slot in range(3)) for size in (width, 32))
    assert len(names(attention(narrow[0], narrow[1], narrow[2]))) == 1
    assert len(names(attention(wide[0], wide[1], wide[2]))) > 1


def test_the_mean_of_everything_is_found_first() -> None:
    x = data(0, 512, 512)
    found = names(elementwise(Ops.SUB, x, total(x, 0, 1) * (1 / 512**2)))
    assert len(found) >= 2
    assert found[-1].startswith("map_512x512")


def test_a_diamond_of_costly_steps_is_computed_once() -> None:
    """exp read by two kernels is stored; a product is computed again in both."""
    costly, cheap = X.alu(Ops.EXP), elementwise(Ops.MUL, X, Y)
    assert names(total(costly, 0), total(costly, 1))[0] == "map_32x64"
    assert len(names(total(costly, 0), total(costly, 1))) == 3
    assert len(names(total(cheap, 0), total(cheap, 1))) == 2


def test_a_costly_value_is_stored_at_its_own_size_not_expanded() -> None:
    """Gradients of a masked attention: 32 x 32 x 64 elements were written to memory."""
    visible = elementwise(Ops.LE, reshape(iota(32), (1, 32, 1)), reshape(iota(32), (32, 1, 1)))
    costly = reshape(X.alu(Ops.EXP) * 2.0, (32, 1, 64))
    masked = elementwise(Ops.WHERE, visible, costly, const(F32, 0.0))
    found = names(total(elementwise(Ops.MUL, masked, reshape(Y, (1, 32, 64))), 2), total(masked, 0))
    assert found == ["map_32x64", "sum_32x32_k64", "sum_32x64_k32"]


def test_a_costly_value_read_in_a_loop_is_stored() -> None:
    """Each exp would be computed 64 times inside the product."""
    assert len(names(matmul(A.alu(Ops.EXP), B))) == 2
    assert len(names(matmul(elementwise(Ops.ADD, A, A), B))) <= 2


def test_operands_are_rounded_once() -> None:
    """Weights in float32, products in bfloat16: each tile of rows rounded the weight again. Matrix units pack it."""
    rounded = matmul(A, B.cast(dtypes.bfloat16).cast(F32))
    assert names(rounded) == ["map_48x64", "sum_32x64_k48"]
    assert len(kernels(scheduled(rounded, has_unit=True))) == 1


def test_a_window_slides_over_elements_in_its_own_order() -> None:
    """The gradient of a pool was stored block by block: of each element that a convolution read, two loops were
    divided, and no schedule knew the window (9 GFLOP/s of 118)."""
    image = interleaved(BLOCKS.alu(Ops.EXP))
    (stored, convolved) = kernels(scheduled(convolution(image, data(1, 4, 4, 3, 3))))
    assert stored.name == "map_4x4x2x4x2"
    assert not any(node.op in (Ops.FLOORDIV, Ops.MOD) for node in convolved.ast.toposort())


def test_a_product_of_values_that_are_made_on_the_way_is_stored() -> None:
    """Of random numbers: 300 x 700 by 700 x 300, then row sums, took 20 times as long as the product."""
    made = [reshape(elementwise(Ops.MUL, iota(n).cast(F32), data(slot, 1)).alu(Ops.SIN), shape)
            for slot, n, shape in ((0, 32 * 48, (32, 48)), (1, 48 * 64, (48, 64)))]  # fmt: skip
    assert names(total(relu(matmul(*made)), 1)) == ["map_1536", "map_3072", "sum_32x64_k48", "sum_32_k64"]


def test_steps_of_a_factor_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step reads the one before it three times: 12 of them were half a million paths."""
    looks: list[object] = []
    needed = fuse._needed

    def counted(use: Any) -> Any:
        looks.append(use)
        return needed(use)

    monkeypatch.setattr(fuse, "_needed", counted)
    factor = B
    for _ in range(12):
        factor = elementwise(Ops.ADD, factor * 0.5, elementwise(Ops.MUL, factor, factor))
    assert len(names(total(matmul(A, factor), 1))) <= 3
    assert len(looks) < 1000


def test_a_reduction_read_by_two_kernels_is_stored() -> None:
    row = total(X, 1)
    found = names(elementwise(Ops.SUB, X, row), total(row.alu(Ops.EXP), 0))
    assert found[0] == "sum_32_k64"
    assert sum(name.startswith("sum_32") for name in found) == 1


def test_few_rows_do_not_swallow_a_large_consumer() -> None:
    """One sum inside a loop over everything would leave one thread at work."""
    x = data(0, 2, 1 << 17)
    assert len(names(elementwise(Ops.SUB, x, total(x, 1)))) >= 2


def test_a_root_that_another_root_reads_is_its_own_kernel() -> None:
    first = X + 1.0
    assert len(names(first, permute(first, (1, 0)) * 2.0)) == 2


def test_equal_roots_are_one() -> None:
    schedule = scheduled(X + 1.0, X + 1.0)
    assert len(kernels(schedule)) == 1
    assert schedule.results[0] == schedule.results[1]


def test_an_input_as_a_root_needs_no_kernel() -> None:
    schedule = scheduled(reshape(X, (64, 32)))
    assert schedule.items == []
    assert schedule.buffers[schedule.results[0]].slot == 0


@pytest.mark.parametrize("name", [*ONE, *MORE])
def test_borders_do_not_change_the_result(name: str) -> None:
    root = ONE[name] if name in ONE else MORE[name][0]
    leaves = sorted({n for n in root.toposort() if n.op is Ops.PARAM}, key=lambda n: int(n.arg[0]))
    if max(int(leaf.arg[1]) for leaf in leaves) > 10_000:
        pytest.skip("too large for the evaluator")
    given = [a * 0.5 + 1 for a in inputs(UOp(Ops.SINK, dtypes.void, tuple(leaves)))]
    schedule = scheduled(root)
    close(run_schedule(schedule, given)[schedule.results[0]], run_graph(root, given))


def test_a_part_of_a_result_is_all_that_is_computed() -> None:
    (kernel,) = kernels(scheduled(shrink(X.alu(Ops.EXP), ((0, 4), (0, 8)))))
    assert kernel.name == "map_4x8"


def test_a_constant_is_filled() -> None:
    (kernel,) = kernels(scheduled(broadcast_to(reshape(const(F32, 2.0), (1, 1)), (3, 4))))
    assert kernel.name == "map_3x4"
    assert not any(node.op is Ops.LOAD for node in kernel.ast.toposort())


def test_what_is_widened_is_kept_narrow() -> None:
    """Exponentials rounded to bfloat16 and read as float32: one row of them, of two bytes each."""
    half = dtypes.bfloat16
    q, k, v = (data(slot, 64, 8, dtype=half) for slot in range(3))
    ast = only(attention(q, k, v))
    assert {node.dtype for node in ast.toposort() if node.op is Ops.LOCAL} == {dtypes.float32, half}


def test_a_window_of_a_sum_is_no_place_to_store_it() -> None:
    """Named regression: between a convolution and a depthwise one, the windows of all taps were stored: nine times the
    memory, and twenty times the time."""
    image, each = relu(convolution(data(0, 1, 32, 14, 14), data(1, 48, 32, 1, 1))), data(2, 1, 48, 1, 1, 3, 3)
    views = window(window(pad(image, ((0, 0), (0, 0), (1, 1), (1, 1))), 2, 3), 3, 3)
    product = elementwise(Ops.MUL, views, broadcast_to(each, views.shape))
    graph = reshape(reduce_axes(product, Ops.ADD, (4, 5)), (1, 48, 14, 14))
    assert names(graph) == ["sum_48x14x14_k32", "sum_48x14x14_k3x3"]
