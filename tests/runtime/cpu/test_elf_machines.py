"""Relocations of AArch64: fields of instructions, and values that do not fit."""

from __future__ import annotations

import struct

import pytest

from kernmill.runtime import elf_machines

ARM = elf_machines.ELF_MACHINES["aarch64"].relocations


@pytest.mark.parametrize(("kind", "field", "value", "address", "made"), [
    (275, 0x90000000, 0x12345000, 0x12340000, 0xB0000020),  # adrp x0, +5 pages
    (277, 0x91000000, 0x12345678, 0, 0x9119E000),  # add x0, x0, #0x678
    (283, 0x94000000, 0x1010, 0x1000, 0x94000004),  # bl +16
    (283, 0x94000000, 0xFF0, 0x1000, 0x97FFFFFC),  # bl -16
    (286, 0xF9400000, 0x12345678, 0, 0xF9433C00),  # ldr x0, [x0, #0x678]
    (299, 0x3DC00000, 0x12345670, 0, 0x3DC19C00),  # ldr q0, [x0, #0x670]
])  # fmt: skip
def test_fields(kind: int, field: int, value: int, address: int, made: int) -> None:
    assert ARM[kind].encode(field, value, address) == made


@pytest.mark.parametrize(("kind", "value"), [(283, 1 << 28), (283, 2), (275, 1 << 34), (286, 4), (280, 1 << 22)])
def test_what_does_not_fit(kind: int, value: int) -> None:
    with pytest.raises(struct.error):
        ARM[kind].encode(0, value, 0)


def test_machines_have_stubs_of_eight_bytes() -> None:
    for machine in elf_machines.ELF_MACHINES.values():
        assert len(machine.stub) == 8
        assert len(machine.flush) % 4 == 0
