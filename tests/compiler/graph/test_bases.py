"""Bases: which node owns the memory of a view, and what a node reads."""

from __future__ import annotations

from kernmill.compiler import data_below, down_to_base, memory_base
from kernmill.ir import Ops, UOp, permute, reshape
from tests.compiler.kernels import data, relu


def test_a_reshape_shares_memory_and_a_transpose_does_not() -> None:
    x = relu(data(0, 4, 6))
    turned = permute(x, (1, 0))
    assert memory_base(reshape(x, (24,))) is x
    assert memory_base(turned) is turned
    assert [node.op for node in down_to_base(reshape(x, (24,)))] == [Ops.RESHAPE, Ops.MAX]


def test_contiguous_of_a_view_owns_its_memory() -> None:
    x = relu(data(0, 4, 6))
    stored, copied = (UOp(Ops.CONTIGUOUS, x.dtype, (source,)) for source in (x, permute(x, (1, 0))))
    assert memory_base(stored) is x
    assert memory_base(copied) is copied


def test_data_below_stops_at_stored_nodes() -> None:
    x = data(0, 4, 6)
    stored = relu(x)
    assert data_below(stored + 1.0, {stored}) == {stored}
    assert data_below(stored, {stored, memory_base(x)}) == {memory_base(x)}
