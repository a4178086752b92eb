"""What a kernel carries besides its nodes."""

from __future__ import annotations

from kernmill.compiler import KernelInfo, iterations
from kernmill.ir import Ops
from tests.compiler.kernels import data, only


def test_a_kernel_knows_its_name_and_the_order_of_its_loops() -> None:
    ast = only(data(0, 4, 5) + 1.0)
    assert ast.arg == KernelInfo("map_4x5", ("i0", "i1"))
    assert ast.arg.actions == ()


def test_iterations_are_the_sizes_of_loops() -> None:
    loops = [node for node in only(data(0, 4, 5) + 1.0).toposort() if node.op is Ops.RANGE]
    assert sorted(iterations(loop) for loop in loops) == [4, 5]
