"""The builder of routines: where values are computed, versions of memory, batches in lanes, threads and work-items."""

from __future__ import annotations

from kernmill.compiler import Routine
from kernmill.ir import Ops, Stage, UOp, dtypes, verify

from .programs import TARGETS, kinds, lanes, program


def _routine(target: str) -> Routine:
    params = [UOp(Ops.PARAM, dtypes.float64, (), (slot, 16)) for slot in (0, 1)]
    k = Routine(TARGETS[target], params, [16, 16], 1, interleaved=False)
    k.base = k.as_index(0)
    return k


def test_a_value_is_computed_outside_of_loops_that_it_does_not_depend_on() -> None:
    k = _routine("scalars")
    out, x = k.matrix(0, 4), k.matrix(1, 4)
    for i in k.between(0, 4):
        first = x[i, 0]
        for j in k.between(0, 4):
            out[i, j] = first * 2.0 + j.of.floated(j)
    uops = k.linear()
    verify(uops, Stage.LINEAR, "test")
    inner = [u.op for u in uops].index(Ops.RANGE, [u.op for u in uops].index(Ops.RANGE) + 1)
    assert [u.op for u in uops].index(Ops.MUL) < inner
    assert next(n for n, u in enumerate(uops) if u.op is Ops.MUL and u.dtype is dtypes.float64) < inner


def test_a_load_after_a_store_is_another_one() -> None:
    k = _routine("scalars")
    out = k.matrix(0, 4)
    before = out[0, 0]
    out[0, 0] = before + 1.0
    after = out[0, 0]
    assert before.uop is not after.uop
    found = [before, after]
    for _ in k.between(0, 2):
        found.append(out[0, 0])
        out[0, 0] = found[-1] * 2.0
    assert len({v.uop for v in (*found, out[0, 0])}) == 4
    verify(k.linear(), Stage.LINEAR, "test")


def test_spans_have_a_part_of_vectors_and_a_rest() -> None:
    for target, high, widths in (("vectors", 6, {4, 1}), ("vectors", 8, {4}), ("vectors", 3, {1}), ("scalars", 6, {1})):
        k = _routine(target)
        width = k.span_lanes
        assert width in (1, 4, 8)
        out, x = k.matrix(0, 16), k.matrix(1, 16)
        for j in k.spans(0, high):
            out[0, j] = x[0, j]
        uops = k.linear()
        verify(uops, Stage.LINEAR, "test")
        found = {u.src[1].dtype.lanes for u in uops if u.op is Ops.STORE}
        assert found == {w if w == 1 else width for w in widths if w == 1 or high >= width} | (
            {1} if high % width else set()
        )


def test_constant_indices_are_folded() -> None:
    k = _routine("scalars")
    assert (k.as_index(3) * 4 + k.as_index(2)).uop.arg == 14
    assert (k.as_index(7) >> 2).uop.arg == 1
    assert (k.as_index(2) - k.as_index(2)).is_never


def test_matrices_of_a_batch_are_in_lanes_threads_or_work_items() -> None:
    counts = (16, 16)
    assert lanes(program("scalars", "cholesky", counts, 9, True, 4)) == 1
    wide = program("wide", "cholesky", counts, 19, True, 4)
    assert lanes(wide) == 8
    threads = program("vectors", "cholesky", counts, 19, True, 4)
    slices = [u.arg for u in threads if u.op is Ops.RANGE and str(u.arg[1]) == "thread"]
    assert [arg[2] for arg in slices] == [0, 19 // lanes(threads)]
    assert "global" in kinds(program("items", "cholesky", counts, 19, True, 4))
    assert kinds(program("vectors", "cholesky", counts, 1, False, 4)) == {"loop"}
