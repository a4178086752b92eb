"""Idle loops go; reductions that stand in different places do not share a loop."""

import numpy as np
import pytest

from kernmill import Tensor
from kernmill.compiler import tidy_reduce_loops
from kernmill.ir import AxisKind, Ops, UOp, closed_ranges, dtypes, make_range

K = make_range("k0", 5, AxisKind.REDUCE)
T = make_range("t0_0", 5, AxisKind.REDUCE)
I = make_range("i0", 3, AxisKind.LOOP)  # noqa: E741 - the loop's own name
MEMORY = UOp(Ops.PARAM, dtypes.float32, (), (1, 15))


def load(place: UOp) -> UOp:
    return UOp(Ops.LOAD, dtypes.float32, (UOp(Ops.INDEX, dtypes.float32, (MEMORY, place)),))


def kernel(value: UOp) -> UOp:
    target = UOp(Ops.INDEX, dtypes.float32, (UOp(Ops.PARAM, dtypes.float32, (), (0, 3)), I))
    return UOp(Ops.SINK, dtypes.void, (UOp(Ops.STORE, dtypes.void, (target, value)),))


def reduce(op: object, value: UOp) -> UOp:
    return UOp(Ops.REDUCE, value.dtype, (value, K), (op, 1))


def test_a_sum_of_equal_terms_is_a_product() -> None:
    tidied = tidy_reduce_loops(kernel(reduce(Ops.ADD, load(I))))
    assert not [node for node in tidied.toposort() if node.op is Ops.REDUCE]
    assert tidied.src[0].src[1] is load(I) * 5.0


def test_a_maximum_of_equal_terms_is_the_term() -> None:
    assert tidy_reduce_loops(kernel(reduce(Ops.MAX, load(I)))).src[0].src[1] is load(I)


def test_a_product_of_equal_terms_keeps_its_loop() -> None:
    tidied = tidy_reduce_loops(kernel(reduce(Ops.MUL, load(I))))
    assert [node.op for node in tidied.toposort()].count(Ops.REDUCE) == 1


def test_sums_in_one_place_share_their_loop() -> None:
    both = reduce(Ops.ADD, load(I * 5 + K)) + reduce(Ops.MAX, load(I * 5 + K))
    loops = {closed_ranges(n) for n in tidy_reduce_loops(kernel(both)).toposort() if n.op is Ops.REDUCE}
    assert loops == {(K,)}


def kept(value: UOp, at: UOp) -> UOp:
    """A row of 5, filled with `value`, which changes with T; read at a place."""
    memory = UOp(Ops.LOCAL, dtypes.float32, (I,), ("t0", 5))
    store = UOp(Ops.STORE, dtypes.void, (UOp(Ops.INDEX, dtypes.float32, (memory, T)), value))
    row = UOp(Ops.AFTER, dtypes.float32, (memory, store, T), 1)
    return UOp(Ops.LOAD, dtypes.float32, (UOp(Ops.INDEX, dtypes.float32, (row, at)),))


def test_a_kept_row_is_folded_while_it_is_filled() -> None:
    value = load(I * 5 + T).alu(Ops.EXP)
    tidied = tidy_reduce_loops(kernel(kept(value, I) / reduce(Ops.ADD, kept(value, K) * 2.0)))
    (total,) = [n for n in tidied.toposort() if n.op is Ops.REDUCE]
    assert total.src == (value * 2.0, T)


@pytest.mark.parametrize("at", [K * 0 + (4 - K), K + I])
def test_a_kept_row_read_in_another_order_is_folded_afterwards(at: UOp) -> None:
    (total,) = [n for n in tidy_reduce_loops(kernel(reduce(Ops.ADD, kept(load(T), at)))).toposort()
                if n.op is Ops.REDUCE]  # fmt: skip
    assert closed_ranges(total) == (K,)


def test_a_sum_that_reads_other_things_too_has_its_own_pass() -> None:
    summed = reduce(Ops.ADD, kept(load(T), K) * load(K))
    (total,) = [n for n in tidy_reduce_loops(kernel(summed)).toposort() if n.op is Ops.REDUCE]
    assert closed_ranges(total) == (K,)


def test_a_sum_that_waits_for_another_one_over_the_row_has_its_own_pass() -> None:
    """Named regression: both were taken while the row was filled, and the block waited for itself."""
    value = load(I * 5 + T).alu(Ops.EXP)
    most = reduce(Ops.MAX, kept(value, K))
    summed = reduce(Ops.ADD, kept(value, K) - most)
    tidied = tidy_reduce_loops(kernel(kept(value, I) / summed))
    loops = [closed_ranges(n) for n in tidied.toposort() if n.op is Ops.REDUCE]
    assert loops[0] == (T,)
    assert loops[1] != (T,)


def test_sums_in_different_places_do_not() -> None:
    both = reduce(Ops.ADD, load(I * 5 + K)) + reduce(Ops.ADD, load(K))
    loops = [closed_ranges(n) for n in tidy_reduce_loops(kernel(both)).toposort() if n.op is Ops.REDUCE]
    assert len(loops) == 2
    assert loops[0] != loops[1]


def test_sums_that_move_to_one_place_share_their_new_loop() -> None:
    three = reduce(Ops.ADD, load(I * 5 + K)) + reduce(Ops.ADD, load(K)) + reduce(Ops.MAX, load(K))
    loops = [closed_ranges(n) for n in tidy_reduce_loops(kernel(three)).toposort() if n.op is Ops.REDUCE]
    assert len(loops) == 3
    assert len(set(loops)) == 2


def test_a_constant_sum_beside_another_one(device: str) -> None:
    """Named regression: the constant sum stood outside the loop that it shared, and the block waited for itself."""
    x = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4), device=device)
    ones = Tensor(1.0, device=device).expand(3, 4)
    mean = x.sum(1) / ones.sum(1)
    assert mean.tolist() == [1.5, 5.5, 9.5]


def test_ends_that_name_loops_get_their_own_as_well() -> None:
    """Named regression: the end of one new loop named the loop that another one took the place of; with `split i1 8;
    split k0 16; unroll i1 3` a column of (8, 17) @ (17, 17) was a part of its sum."""
    end = make_range("k1", K + 1, AxisKind.REDUCE)
    loops = (K, end), (end, K)
    for closed in loops:
        sums = [UOp(Ops.REDUCE, dtypes.float32, (load(at), *closed), (Ops.ADD, 1)) for at in (I * 5 + end + K, end + K)]
        tidied = tidy_reduce_loops(kernel(sums[0] + sums[1]))
        ranges = {r for node in tidied.toposort() if node.op is Ops.REDUCE for r in closed_ranges(node)}
        assert len(ranges) == 4
        for total in (node for node in tidied.toposort() if node.op is Ops.REDUCE):
            own = closed_ranges(total)
            assert all(r.src[0].ranges <= set(own) for r in own)
