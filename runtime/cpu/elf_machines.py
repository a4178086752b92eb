"""Relocations of ELF64 objects, for each machine that the loader knows: how an address is written into code.

Sources: System V ABI, AMD64 supplement, table 4.9 and following; ELF for the Arm 64-bit Architecture, 5.7.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

__all__ = ["ELF_MACHINES", "ElfMachine", "Relocation", "flush_function"]

_PAGE: Final = 4096  # of ADRP


class Relocation(NamedTuple):
    """`encode(field, value, address)` returns the new field at an address; struct.error if the value does not fit."""

    form: struct.Struct
    encode: Callable[[int, int, int], int]
    is_relative: bool = False  # so that the target may be too far away, and a stub stands for it
    through_slot: bool = False  # the value is the address of a slot that holds the target's


class ElfMachine(NamedTuple):
    """A machine of ELF. A slot is a stub, which jumps to the 8-byte address behind it: 16 bytes in all."""

    name: str
    number: int
    stub: bytes
    relocations: dict[int, Relocation]
    flush: bytes = b""  # a function (begin, end) that makes written code visible to instruction fetch


_U64, _I64, _U32, _I32 = (struct.Struct(form) for form in ("<Q", "<q", "<I", "<i"))


def _absolute(field: int, value: int, address: int) -> int:
    return value


def _relative(field: int, value: int, address: int) -> int:
    return value - address


_X86: Final = {
    1: Relocation(_U64, _absolute),  # R_X86_64_64
    2: Relocation(_I32, _relative, True),  # R_X86_64_PC32
    4: Relocation(_I32, _relative, True),  # R_X86_64_PLT32
    9: Relocation(_I32, _relative, True, True),  # R_X86_64_GOTPCREL
    10: Relocation(_U32, _absolute),  # R_X86_64_32
    11: Relocation(_I32, _absolute),  # R_X86_64_32S
    24: Relocation(_I64, _relative, True),  # R_X86_64_PC64
    41: Relocation(_I32, _relative, True, True),  # R_X86_64_GOTPCRELX
    42: Relocation(_I32, _relative, True, True),  # R_X86_64_REX_GOTPCRELX
}


def _as_field(value: int, bits: int, step: int = 1) -> int:
    """Return value / step as a field of `bits` bits; struct.error if it does not fit."""
    if value % step or not -(1 << bits - 1) <= value // step < 1 << bits - 1:
        raise struct.error(f"{value} does not fit {bits} bits")
    return value // step & (1 << bits) - 1


def _page(field: int, value: int, address: int) -> int:
    """ADRP: the distance of pages, in two parts."""
    pages = _as_field(value // _PAGE - address // _PAGE, 21)
    return field & ~(3 << 29 | 0x7FFFF << 5) | (pages & 3) << 29 | pages >> 2 << 5


def _branch(field: int, value: int, address: int) -> int:
    """B, BL: words to go."""
    return field & ~0x3FFFFFF | _as_field(value - address, 26, 4)


def _short_branch(field: int, value: int, address: int) -> int:
    """B.cond, CBZ: words to go."""
    return field & ~(0x7FFFF << 5) | _as_field(value - address, 19, 4) << 5


def _low(size: int) -> Callable[[int, int, int], int]:
    """The offset within a page, of an access of `size` bytes."""

    def encode(field: int, value: int, address: int) -> int:
        offset = value % _PAGE
        if offset % size:
            raise struct.error(f"{offset} is not a multiple of {size}")
        return field & ~(0xFFF << 10) | offset // size << 10

    return encode


_AARCH64: Final = {
    257: Relocation(_U64, _absolute),  # R_AARCH64_ABS64
    258: Relocation(_U32, _absolute),  # R_AARCH64_ABS32
    260: Relocation(_I64, _relative, True),  # R_AARCH64_PREL64
    261: Relocation(_I32, _relative, True),  # R_AARCH64_PREL32
    275: Relocation(_U32, _page),  # R_AARCH64_ADR_PREL_PG_HI21
    277: Relocation(_U32, _low(1)),  # R_AARCH64_ADD_ABS_LO12_NC
    278: Relocation(_U32, _low(1)),  # R_AARCH64_LDST8_ABS_LO12_NC
    280: Relocation(_U32, _short_branch, True),  # R_AARCH64_CONDBR19
    282: Relocation(_U32, _branch, True),  # R_AARCH64_JUMP26
    283: Relocation(_U32, _branch, True),  # R_AARCH64_CALL26
    284: Relocation(_U32, _low(2)),  # R_AARCH64_LDST16_ABS_LO12_NC
    285: Relocation(_U32, _low(4)),  # R_AARCH64_LDST32_ABS_LO12_NC
    286: Relocation(_U32, _low(8)),  # R_AARCH64_LDST64_ABS_LO12_NC
    299: Relocation(_U32, _low(16)),  # R_AARCH64_LDST128_ABS_LO12_NC
    311: Relocation(_U32, _page, False, True),  # R_AARCH64_ADR_GOT_PAGE
    312: Relocation(_U32, _low(8), False, True),  # R_AARCH64_LD64_GOT_LO12_NC
}
_FLUSH_WORDS: Final = (
    0xD53B0023,  # mrs x3, ctr_el0
    0x53104C64,  # ubfx w4, w3, #16, #4
    0x52800085,  # mov w5, #4
    0x1AC420A4,  # lsl w4, w5, w4       bytes of a data cache line
    0x12000C63,  # and w3, w3, #15
    0x1AC320A3,  # lsl w3, w5, w3       bytes of an instruction cache line
    0xD1000486,  # sub x6, x4, #1
    0x8A260007,  # bic x7, x0, x6
    0xD50B7B27,  # 1: dc cvau, x7
    0x8B0400E7,  # add x7, x7, x4
    0xEB0100FF,  # cmp x7, x1
    0x54FFFFA3,  # b.lo 1b
    0xD5033B9F,  # dsb ish
    0xD1000466,  # sub x6, x3, #1
    0x8A260007,  # bic x7, x0, x6
    0xD50B7527,  # 2: ic ivau, x7
    0x8B0300E7,  # add x7, x7, x3
    0xEB0100FF,  # cmp x7, x1
    0x54FFFFA3,  # b.lo 2b
    0xD5033B9F,  # dsb ish
    0xD5033FDF,  # isb
    0xD65F03C0,  # ret
)
ELF_MACHINES: Final = {  # by `platform.machine()`
    "x86_64": ElfMachine("x86-64", 62, bytes.fromhex("ff2502000000cccc"), _X86),  # jmp *(rip + 2)
    "aarch64": ElfMachine(  # ldr x16, [pc, 8]; br x16
        "AArch64", 183, bytes.fromhex("5000005800021fd6"), _AARCH64, b"".join(map(_U32.pack, _FLUSH_WORDS))
    ),
}


def flush_function(address: int) -> Callable[[int, int], None]:
    """Return the function at `address`, where the bytes `flush` are."""
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(address)
