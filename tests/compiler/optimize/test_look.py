"""What the heuristic reads off a kernel: sizes, steps, reductions."""

from __future__ import annotations

from kernmill.compiler import look, main_group, merge_loops, nest_iterations
from tests.compiler.kernels import VECTORS, data, matmul, only


def test_a_product_steps_as_its_operands_lie() -> None:
    shape = look(merge_loops(only(matmul(data(0, 6, 20), data(1, 20, 48)))), VECTORS)
    group = main_group(shape)
    assert group is not None
    assert group.loops == ["k0"]
    assert group.around == {"i0", "i1"}
    assert nest_iterations(shape, ["i0", "i1", "k0"]) == 6 * 20 * 48
    a, b = sorted(group.loads, key=lambda access: int(access.node.src[0].src[0].arg[0]))
    assert (a.step("i0"), a.step("i1"), a.step("k0")) == (20, 0, 1)
    assert (b.step("i0"), b.step("i1"), b.step("k0")) == (0, 1, 48)


def test_a_map_has_no_group() -> None:
    shape = look(merge_loops(only(data(0, 4, 8) + 1.0)), VECTORS)
    assert main_group(shape) is None
    assert shape.work == 1
    assert shape.lanes == VECTORS.vector_bytes // 4
