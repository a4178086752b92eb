"""A session over a transport that stands for the emulator: commands and their bytes."""

from __future__ import annotations

import struct

import pytest

from kernmill.ir import OutOfMemoryError
from kernmill.runtime import resident, session


class Echo(session.Transport):
    """Keeps what is written, and answers with given numbers."""

    def __init__(self, *answers: int) -> None:
        self.written = bytearray()
        self.answers = [0, *answers]  # of the ping that opens a session
        self.is_closed = False
        self.pieces: dict[int, bytearray] = {}

    def write(self, data: bytes | memoryview) -> None:
        self.written += bytes(data)

    def read(self, target: memoryview) -> None:
        target[:] = self.answers.pop(0).to_bytes(8, "little", signed=True)[: len(target)]

    def share(self, number: int, size_bytes: int) -> tuple[int, memoryview]:
        self.pieces[7 + number] = bytearray(size_bytes)
        return 7 + number, memoryview(self.pieces[7 + number])

    def close(self) -> None:
        self.is_closed = True


def test_commands_have_64_bytes() -> None:
    transport = Echo(0x10000)
    opened = session.Session("HTP", transport, 1 << 20)
    assert opened.allocate(100) == (0x11000, 4096)
    first, second = (struct.unpack_from("<3I", transport.written, 64 * n) for n in range(2))
    assert first == (resident.Command.PING, 0, 0)
    assert second == (resident.Command.MAP, 7, (1 << 20) + 8192)
    assert len(transport.written) == 128


def test_copies_are_in_memory_of_both() -> None:
    transport = Echo(0x10000)
    opened = session.Session("HTP", transport, 1 << 20)
    address, _ = opened.allocate(100)
    opened.copy_in(address + 5, b"abc")
    assert transport.pieces[7][4096 + 5 : 4096 + 8] == b"abc"
    back = bytearray(4)
    opened.copy_out(memoryview(back), address + 4)
    assert back == b"\0abc"
    assert len(transport.written) == 128


def test_launches_are_one_command() -> None:
    transport = Echo(0x1000, 77)
    opened = session.Session("HTP", transport, 1 << 20)
    assert opened.allocate(4096)[0] == 0x2000
    opened.run(0x2000, [(0x100, (5, -1), 9), (0x200, (), 1)], is_timed=False)
    table = transport.pieces[7][4096:]
    assert struct.unpack_from("<8I", table) == (0x100, 0x2020, 0, 9, 0x200, 0x2030, 0, 1)
    assert struct.unpack_from("<2q", table, 32) == (5, -1)
    assert struct.unpack_from("<3I", transport.written, 128) == (resident.Command.RUN, 0x2000, 2)


def test_the_limit() -> None:
    opened = session.Session("HTP:2", Echo(0x10000), 8192)
    opened.allocate(4096)
    with pytest.raises(OutOfMemoryError) as caught:
        opened.allocate(5000)
    assert str(caught.value) == (
        "HTP:2: 8,192 bytes more than 4,096 exceed the session's limit of 8,192. "
        "Use more sessions, or free some tensors."
    )


def test_the_end() -> None:
    transport = Echo()
    session.Session("HTP", transport, 1 << 20).close()
    assert transport.is_closed
