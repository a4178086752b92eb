"""A graph that is not known yet."""

from __future__ import annotations

from kernmill.compiler import Draft, plan_graph, plan_memory
from kernmill.runtime import planned
from tests.compiler.kernels import data, matmul, softmax


def test_a_schedule_comes_with_its_memory() -> None:
    given = [softmax(matmul(data(0, 32, 16), data(1, 16, 24)))], ("LLVM",) * 2, frozenset[int](), "LLVM"
    plan, memory = planned(*given)
    assert plan.results == plan_graph(Draft(*given)).plan.results
    assert memory == plan_memory(plan)
    assert memory.offsets
