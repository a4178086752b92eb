"""A linker for Hexagon: relocatable objects of LLVM to bytes at a fixed address, and to a static program.

An immediate that does not fit an instruction is in two parts. 26 bits are in a word before it (an extender), and 6 bits
in the instruction, at positions that depend on the instruction.

Sources: System V ABI for Hexagon, table of relocations; Hexagon V67 Programmer's Reference, chapter 10.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from kernmill.ir import FormatError

__all__ = ["Image", "link", "static_program"]

_SECTION, _SYMBOL, _RELA = struct.Struct("<10I"), struct.Struct("<IIIBBH"), struct.Struct("<IIi")
_PROGBITS, _SYMTAB, _RELA_TYPE, _NOBITS, _ALLOC, _UNDEF = 1, 2, 4, 8, 2, 0
_MACHINE: Final = 164
_LINE: Final = 128  # bytes, alignment of a vector
_HEADER_BYTES: Final = 0x1000  # before the code of a program


class Image(NamedTuple):
    """Linked bytes. `size_bytes` includes the zeros after them."""

    address: int
    data: bytes
    size_bytes: int
    symbols: dict[str, int]


def _deposit(mask: int, value: int) -> int:
    """Put the low bits of a value where the mask has bits."""
    found = 0
    for bit in range(32):
        if mask >> bit & 1:
            found |= (value & 1) << bit
            value >>= 1
    return found


# instructions with an immediate of 6 bits, by their class: where these bits are
_SIX = {
    0x38: 0x201F, 0x39: 0x201F, 0x3E: 0x1F80, 0x3F: 0x1F80, 0x40: 0x20F8, 0x41: 0x7E0, 0x42: 0x20F8, 0x43: 0x7E0,
    0x44: 0x20F8, 0x45: 0x7E0, 0x46: 0x20F8, 0x47: 0x7E0, 0x6A: 0x1F80, 0x7C: 0x1F2000, 0x9A: 0xF60, 0x9B: 0xF60,
    0x9C: 0xF60, 0x9D: 0xF60, 0x9F: 0x1F0100, 0xAB: 0x3F, 0xAD: 0x3F, 0xAF: 0x30078, 0xD7: 0x6020E0, 0xD8: 0x6020E0,
    0xDB: 0x6020E0, 0xDF: 0x6020E0,
}  # fmt: skip
_SIXTEEN = {0x48: 0x61F20FF, 0x49: 0x61F3FE0, 0x78: 0xDF3FE0, 0xB0: 0xFE03FE0, 0x74: 0x1FE0}
_PLAIN = {24: 0x7E0, 26: 0x203FE0, 27: 0x3FE0}  # relocation types with one position in all instructions
_PAIR = 0x3F00000  # two instructions in one word


def _mask(kind: int, word: int) -> int:
    """Return the bits of the low part of an extended immediate."""
    if not word & 0xC000:
        return _PAIR
    high = word >> 24
    if kind == 23:
        return _SIXTEEN.get(high) or _SIX.get(high, 0)
    if kind == 25:
        return 0x60020FF if high == 0xA1 else 0x6003FE0
    if kind == 28:
        return {0xDE: 0xE020E8, 0x3C: 0x207F}.get(high, 0x1FE0)
    return _PLAIN.get(kind) or _SIX.get(high, 0)


_EXTENDER, _CALL, _BRANCH, _SHORT = 0xFFF3FFF, 0x1FF3FFE, 0xDF20FE, 0x3000FE
# relocation type -> (relative, new bits of the word from the value and the word)
_KINDS: dict[int, tuple[bool, Callable[[int, int], int]]] = {
    1: (True, lambda value, word: _deposit(_CALL, value >> 2)),  # B22_PCREL
    2: (True, lambda value, word: _deposit(_BRANCH, value >> 2)),  # B15_PCREL
    4: (False, lambda value, word: _deposit(0xC03FFF, value)),  # LO16
    5: (False, lambda value, word: _deposit(0xC03FFF, value >> 16)),  # HI16
    6: (False, lambda value, word: value & 0xFFFFFFFF),  # 32
    15: (True, lambda value, word: _deposit(_SHORT, value >> 2)),  # B9_PCREL
    16: (True, lambda value, word: _deposit(_EXTENDER, value >> 6)),  # B32_PCREL_X
    17: (False, lambda value, word: _deposit(_EXTENDER, value >> 6)),  # 32_6_X
    18: (True, lambda value, word: _deposit(_CALL, value & 63)),  # B22_PCREL_X
    19: (True, lambda value, word: _deposit(_BRANCH, value & 63)),  # B15_PCREL_X
    21: (True, lambda value, word: _deposit(_SHORT, value & 63)),  # B9_PCREL_X
    31: (True, lambda value, word: value & 0xFFFFFFFF),  # 32_PCREL
    **{kind: (False, lambda value, word, kind=kind: _deposit(_mask(kind, word), value & 63))  # type: ignore[misc]
       for kind in range(23, 31)},
}  # fmt: skip
_REACH: Final = {1: 1 << 23}  # bytes


def link(data: bytes, address: int, externals: Mapping[str, int]) -> Image:
    """Lay out an object at an address, and resolve what it calls.

    Raises:
        FormatError: the bytes are not an object of Hexagon, or it calls something unknown.
    """
    if data[:6] != b"\x7fELF\x01\x01" or struct.unpack_from("<HH", data, 16) != (1, _MACHINE):
        raise _damaged("the bytes are not a relocatable Hexagon object")
    (offset,), (count,) = struct.unpack_from("<I", data, 32), struct.unpack_from("<H", data, 48)
    sections = [_SECTION.unpack_from(data, offset + _SECTION.size * n) for n in range(count)]
    offsets, end, filled = _lay_out(sections, address)
    symtab = next(s for s in sections if s[1] == _SYMTAB)
    names = sections[symtab[6]]
    rows = list(_SYMBOL.iter_unpack(data[symtab[4] : symtab[4] + symtab[5]]))
    addresses: list[int | None] = []
    symbols: dict[str, int] = {}
    for name, value, _, info, _, where in rows:
        start = names[4] + name
        symbol = data[start : data.index(b"\0", start)].decode()
        found = externals.get(symbol) if where == _UNDEF else offsets[where] + value if where in offsets else None
        if where == _UNDEF and symbol and found is None:
            raise FormatError(f"link: the kernel calls {symbol!r}, which the resident program does not have.")
        addresses.append(found)
        if where in offsets and info >> 4:
            symbols[symbol] = offsets[where] + value
    image = bytearray(filled - address)
    for index, at in offsets.items():
        if sections[index][1] == _PROGBITS:
            image[at - address : at - address + sections[index][5]] = data[sections[index][4] :][: sections[index][5]]
    for section in sections:
        if section[1] == _RELA_TYPE and section[7] in offsets:
            for where, info, addend in _RELA.iter_unpack(data[section[4] : section[4] + section[5]]):
                target = addresses[info >> 8]
                if target is None:
                    raise _damaged(f"a relocation names symbol {info >> 8}, which has no address")
                _relocate(image, offsets[section[7]] + where, address, info & 255, target + addend)
    return Image(address, bytes(image), end - address, symbols)


def _lay_out(sections: list[tuple[int, ...]], address: int) -> tuple[dict[int, int], int, int]:
    """Return the address of each section, those of zeros last; the end; and the end of the bytes that are not zeros."""
    offsets: dict[int, int] = {}
    end = filled = address
    for kind in (_PROGBITS, _NOBITS):
        for index, (_, own, flags, _, _, size, _, _, align, _) in enumerate(sections):
            if own == kind and flags & _ALLOC and size:
                offsets[index] = end = -(-end // max(align, 1)) * max(align, 1)
                end += size
        filled = end if kind == _PROGBITS else filled
    return offsets, end, filled


def _relocate(image: bytearray, at: int, base: int, kind: int, target: int) -> None:
    if kind not in _KINDS:
        raise FormatError(f"link: relocation type {kind} of Hexagon is not supported.")
    is_relative, bits = _KINDS[kind]
    value = target - (at if is_relative else 0)
    if abs(value) >= _REACH.get(kind, 1 << 32):
        raise FormatError(f"link: a call from {at:#x} does not reach {target:#x}.")
    (word,) = struct.unpack_from("<I", image, at - base)
    struct.pack_into("<I", image, at - base, word | bits(value, word) & 0xFFFFFFFF)


def static_program(data: bytes, address: int) -> tuple[bytes, dict[str, int]]:
    """Return an object as a program that starts at `_start`, in one segment, and the addresses of its symbols."""
    image = link(data, address, {})
    header = struct.pack("<16sHHIIIIIHHHHHH", b"\x7fELF\x01\x01\x01", 2, _MACHINE, 1, image.symbols["_start"], 52, 0,
                         0x67, 52, 32, 1, 0, 0, 0)  # fmt: skip
    segment = struct.pack("<8I", 1, _HEADER_BYTES, address, address, len(image.data), image.size_bytes, 7, 0x1000)
    return (header + segment).ljust(_HEADER_BYTES, b"\0") + image.data, image.symbols


def _damaged(what: str) -> FormatError:
    return FormatError(f"link: {what}. It is damaged or was not made by this compiler; clear the cache.")
