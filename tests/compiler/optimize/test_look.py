"""What the heuristics see of a kernel."""

from __future__ import annotations

from kernmill.compiler import merge_loops
from kernmill.compiler.optimize.look import iterations, look, main_group
from tests.compiler.kernels import VECTORS, attention, data, matmul, only, total


def test_steps_of_a_product() -> None:
    shape = look(merge_loops(only(matmul(data(0, 6, 9), data(1, 9, 20)))), VECTORS)
    main = main_group(shape)
    assert main is not None
    left, right = sorted(main.loads, key=lambda a: a.size_bytes * a.step("i1") if a.step("i1") else 0)
    assert [left.step(n) for n in ("i0", "i1", "k0")] == [9, 0, 1]
    assert [right.step(n) for n in ("i0", "i1", "k0")] == [0, 1, 20]
    assert (main.loops, main.around, shape.outputs) == (["k0"], {"i0", "i1"}, ["i0", "i1"])
    assert iterations(shape, shape.outputs) == 120


def test_a_sum_over_everything_stands_in_no_loop() -> None:
    shape = look(merge_loops(only(total(data(0, 40), 0))), VECTORS)
    assert [g.around for g in shape.groups] == [set()]
    assert not shape.keeping


def test_loops_that_fill_kept_rows() -> None:
    shape = look(merge_loops(only(attention(data(0, 26, 5), data(1, 25, 5), data(2, 25, 6)))), VECTORS)
    assert (shape.kept, shape.filling) == (["i0"], ["t1_0", "t0_0"])
