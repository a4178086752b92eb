"""The reasons of kernel borders are the answers of `fuse`: each agrees with the kernels, and each has its example."""

from __future__ import annotations

import pytest

from kernmill.compiler import Draft, fusion_lines, plan_graph
from kernmill.ir import Kernel, Ops, UOp, elementwise, reduce_axes
from tests.compiler.graph.test_fuse import ONE
from tests.compiler.kernels import data, layer_norm, matmul, relu, softmax, total

A, B, C = data(0, 32, 48), data(1, 48, 64), data(2, 64, 64)
PRODUCT = matmul(A, B)

# graphs, and a sentence that says why one of their kernels ends, or why something is inside
REASONS = {
    "a result": (A.alu(Ops.EXP), "ends at EXP (32, 48): the program reads it"),
    "bias and activation": (relu(elementwise(Ops.ADD, PRODUCT, data(2, 64))), "each row of its reader needs it once"),
    "softmax of a product": (softmax(PRODUCT), "it has a reduction and is read at"),
    "two products": (matmul(PRODUCT, C), "inside of its reader's reduction it would be computed"),
    "layer norm": (layer_norm(data(0, 512, 512)), "512 of them are independent of each other"),
    "sum of a maximum": (total(reduce_axes(data(0, 64, 32, 256), Ops.MAX, (2,)), 1), "another one: a loop for it"),
    "a sum of sums": (total(total(data(0, 64, 32, 256), 2), 1), "its reader goes on with the same sum"),
    "an expensive operand": (matmul(A.alu(Ops.EXP).alu(Ops.SIN), B), "one kernel needs each element 64 times"),
}


def planned(graph: UOp) -> Draft:
    params = {node.arg[0] for node in graph.toposort() if node.op is Ops.PARAM}
    return plan_graph(Draft([graph], ["LLVM"] * len(params), frozenset(), "LLVM"))


@pytest.mark.parametrize("name", REASONS)
def test_a_border_has_the_reason_of_the_pass(name: str) -> None:
    graph, said = REASONS[name]
    found = fusion_lines(planned(graph))
    assert said in "\n".join(line for _, lines in found for line in lines)


@pytest.mark.parametrize("graph", [*ONE.values(), *(graph for graph, _ in REASONS.values())])
def test_reasons_agree_with_the_kernels(graph: UOp) -> None:
    """Each kernel is explained once; what is stored says so, and what is not says why not."""
    draft = planned(graph)
    kernels = [item for item in draft.plan.items if isinstance(item, Kernel)]
    found = fusion_lines(draft)
    assert [name for name, _ in found[: len(kernels)]] == [kernel.name for kernel in kernels]
    assert all(lines[0].startswith("ends at ") for _, lines in found)
    assert all("{}" not in line for _, lines in found for line in lines)
    for node, why in draft.fusion.why.items():
        assert (node in draft.fusion.kernel_of) == why.is_stored, why
