"""What is read off a linear list: instructions by kind, and the memory that accesses cover."""

from __future__ import annotations

from kernmill.compiler import Work, parse_schedule, read_work
from kernmill.ir import UOp, permute
from tests.compiler.kernels import VECTORS, data, lowered, matmul, only, total


def work(root: UOp, schedule: str) -> Work:
    return read_work(lowered(only(root), VECTORS, parse_schedule(schedule)), VECTORS)


def test_a_product_counts_multiplications_and_its_chain() -> None:
    found = work(matmul(data(0, 32, 64), data(1, 64, 64)), "vectorize i1 16; unroll i1 2; unroll i0 4; unroll k0 2")
    (body,) = [body for body in found.bodies if body.chain]
    assert (body.fma, body.sums, body.chain, body.trips) == (16, 8, 2, 32)
    assert body.times == 8 * 2 * 32
    assert (body.load, body.shuffle, body.lanes) == (2 * (2 + 4), 0, 0), "a load of one value fills all lanes"


def test_what_accesses_cover() -> None:
    found = work(matmul(data(0, 32, 64), data(1, 64, 64)), "vectorize i1 16; unroll i1 2; unroll i0 4")
    covers = {int(one.memory.arg[0]): one for one in found.coverages}
    left, right = covers[1], covers[2]
    assert (left.pieces, left.piece_bytes) == (4, 4), "a value of each of four rows"
    assert (right.pieces, right.piece_bytes) == (1, 128)
    assert right.bytes_in(right.loops) == 64 * 64 * 4
    assert right.bytes_in(right.loops[-1:]) == 64 * 128, "the inner loop reads two vectors of each row"
    assert left.run_bytes == 256, "a row"


def test_lanes_far_apart_are_gathers_or_shuffles() -> None:
    gathered = work(permute(data(0, 64, 64), (1, 0)) * 1.0, "vectorize i1 16")
    assert max(body.lanes for body in gathered.bodies) == 16
    turned = work(permute(data(0, 64, 64), (1, 0)) * 1.0, "vectorize i1 16; unroll i0 16")
    assert max(body.lanes for body in turned.bodies) == 0
    assert max(body.shuffle for body in turned.bodies) == 64, "four steps of sixteen"


def test_a_loop_that_is_invariant_covers_nothing_more() -> None:
    found = work(total(data(0, 64, 64), 1), "")
    store = next(one for one in found.coverages if one.is_store)
    assert store.bytes_in(store.loops) == 64 * 4
