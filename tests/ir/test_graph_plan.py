"""The data that the scheduler hands on."""

from __future__ import annotations

from kernmill.compiler import KernelInfo
from kernmill.ir import GraphPlan, Kernel
from tests.compiler.kernels import data, kernels, only, scheduled


def test_a_kernel_is_named_by_its_sink() -> None:
    ast = only(data(0, 4, 5) + 1.0)
    assert isinstance(ast.arg, KernelInfo)
    assert Kernel.of(ast, (0, 1), (0,), "LLVM", ()).name == ast.arg.name == "map_4x5"
    assert ast.arg.order == ("i0", "i1")
    assert ast.arg.actions == ()


def test_params_are_numbered_like_the_buffers() -> None:
    (kernel,) = kernels(scheduled(data(0, 4, 5) + 1.0))
    assert kernel.buffers[0] == kernel.outputs[0]
    assert len(kernel.buffers) == 2


def test_an_empty_schedule_is_empty() -> None:
    plan = GraphPlan()
    assert (plan.items, plan.buffers, plan.results, plan.checks) == ([], [], [], [])
