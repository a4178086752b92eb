"""What the heuristic reads off a kernel: sizes, steps, reductions."""

from __future__ import annotations

from kernmill.compiler import analyze, main_group, merge_loops, nest_iterations
from tests.compiler.kernels import VECTORS, attention, data, matmul, only


def test_a_product_steps_as_its_operands_lie() -> None:
    facts = analyze(merge_loops(only(matmul(data(0, 6, 20), data(1, 20, 48)))), VECTORS)
    group = main_group(facts)
    assert group is not None
    assert group.loops == ["k0"]
    assert group.around == {"i0", "i1"}
    assert nest_iterations(facts, ["i0", "i1", "k0"]) == 6 * 20 * 48
    a, b = sorted(group.loads, key=lambda access: int(access.node.src[0].src[0].arg[0]))
    assert (a.step("i0"), a.step("i1"), a.step("k0")) == (20, 0, 1)
    assert (b.step("i0"), b.step("i1"), b.step("k0")) == (0, 1, 48)


def test_a_map_has_no_group() -> None:
    facts = analyze(merge_loops(only(data(0, 4, 8) + 1.0)), VECTORS)
    assert main_group(facts) is None
    assert facts.work == 1
    assert facts.lanes == VECTORS.vector_bytes // 4


def test_loops_that_fill_kept_rows() -> None:
    facts = analyze(merge_loops(only(attention(data(0, 26, 5), data(1, 25, 5), data(2, 25, 6)))), VECTORS)
    assert (facts.kept, facts.filling) == (["i0"], ["t1_0", "t0_0"])
