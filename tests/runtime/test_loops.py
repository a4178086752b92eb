"""Loops over recorded bodies, by buffers: rows, carries and conditions."""

from __future__ import annotations

from kernmill import Tensor
from kernmill.runtime import BufferSlot, allocate_buffer, buffer_node
from tests.kernmill.against import values


def test_the_buffer_of_a_round_is_a_slice() -> None:
    node = Tensor(values(4, 3)).realize().uop
    while node.storage is None:
        node = node.src[0]
    part = BufferSlot(0, 1, 3, 2).of_round([node.storage], 2)
    assert (part.numel, part.address - node.storage.address) == (2, 7 * node.storage.dtype.size_bytes)
    assert part.owner is node.storage
    whole = allocate_buffer("LLVM", node.dtype, 4)
    assert buffer_node(BufferSlot(0, 0, 0, 4).of_round([whole], 3)).shape == (4,)
