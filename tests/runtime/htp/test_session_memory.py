"""Blocks of a session's memory: pieces, neighbours that join, margins."""

from __future__ import annotations

from kernmill.runtime import session_memory

SIZE, PAGE = session_memory.LARGEST_BLOCK, session_memory.SESSION_PAGE


def made(limit: int, start: int = 0x10000) -> session_memory.SharedMemory:
    size = session_memory.piece_sizes(limit)[0]
    return session_memory.SharedMemory(
        limit, lambda number, wanted: (start + number * 2 * size, memoryview(bytearray(wanted)))
    )


def test_pieces_have_room_for_the_limit_and_small_blocks_come_first() -> None:
    assert session_memory.piece_sizes(8192) == [8192 + 2 * PAGE]
    assert session_memory.piece_sizes(2 * SIZE + 5) == [
        3 * PAGE,
        SIZE + 2 * PAGE,
        SIZE + 2 * PAGE,
    ]


def test_blocks_have_a_margin_and_join_when_they_are_free() -> None:
    memory = made(4 * PAGE)
    first, second, third = (memory.take(PAGE) for _ in range(3))
    assert (first, second, third) == (0x11000, 0x12000, 0x13000)
    assert memory.take(2 * PAGE) == 0
    memory.give(first, PAGE)
    memory.give(third, PAGE)
    assert memory.free_parts == [(first, PAGE), (third, 2 * PAGE)]
    memory.give(second, PAGE)
    assert memory.free_parts == [(first, 4 * PAGE)]
    memory.view(second, 3)[:] = b"abc"
    assert bytes(memory.pieces[0][1][2 * PAGE : 2 * PAGE + 3]) == b"abc"


def test_a_piece_that_cannot_be_mapped_is_no_room() -> None:
    assert session_memory.SharedMemory(PAGE, lambda number, size: None).take(PAGE) == 0
