"""Loader for relocatable ELF64 objects of x86-64 and AArch64, as LLVM emits them: bytes in, addresses out.

A kernel has code and constants only, so it takes one mapping: written while it is private to us, then switched to
read + execute. No page is ever writable and executable at once. Every offset is checked: a damaged file is a
`FormatError`, never a crash (tests/runtime/cpu/test_elf.py mutates objects byte by byte).

What differs between machines is a table: elf_machines.py.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import mmap
import os
import struct
import sys
from collections.abc import Callable, Mapping

from kernmill.ir import FormatError, OutOfMemoryError, keep_until_death, taken

from ..memory.allocator import round_up
from .elf_machines import ELF_MACHINES, ElfMachine, Relocation, flush_function

__all__ = ["ElfModule", "is_elf_host", "libc", "load_elf", "return_free_heap", "unmap_unused"]

_PAGE = mmap.PAGESIZE
_MACHINE = os.uname().machine if sys.platform == "linux" else ""  # as platform.machine, whose import is slow
_LIMIT_BYTES = 64 << 20  # no kernel is this large; a damaged size field easily is
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELA = struct.Struct("<QQq")
_PROGBITS, _SYMTAB, _RELA_TYPE, _NOBITS = 1, 2, 4, 8
_WRITE, _ALLOC = 1, 2
_UNDEF, _ABS = 0, 0xFFF1
_SLOT_BYTES = 16  # a stub, then the address: a jump and a slot of the global offset table in one
_READ_EXECUTE = 1 | 4


def is_elf_host() -> bool:
    """True if this loader can be used here: Linux on x86-64 or AArch64."""
    return _MACHINE in ELF_MACHINES


class ElfModule:
    """Loaded code. `symbols` maps each global symbol to its address, valid as long as this object lives."""

    __slots__ = ("__weakref__", "_keep", "_mapped", "symbols")

    def __init__(self, symbols: dict[str, int], mapped: tuple[int, int] | None = None, keep: object = None) -> None:
        self.symbols = symbols
        self._mapped = mapped
        self._keep = keep  # the owner of the code if it is not this loader: LLJIT's tracker
        if mapped is not None:
            keep_until_death(self, mapped, _unused)


_unused: collections.deque[object] = collections.deque()  # mappings of modules that are gone


def unmap_unused() -> None:
    """Unmap the pages of freed modules. Not at exit: a worker of a pool may still run such code."""
    for mapped in taken(_unused):
        libc().munmap(*mapped)


@functools.cache
def libc() -> ctypes.CDLL:
    """The C library of this process: its calls let other threads run."""
    found = ctypes.CDLL(None, use_errno=True)
    size, pointer, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    found.mmap.argtypes, found.mmap.restype = [pointer, size, number, number, number, ctypes.c_long], pointer
    found.mprotect.argtypes = [pointer, size, number]
    found.munmap.argtypes = [pointer, size]
    found.madvise.argtypes = [pointer, size, number]
    return found


def return_free_heap() -> None:
    """Give memory that was freed back to the system, where the C library can: compiling leaves much of it."""
    trim = getattr(libc(), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


@functools.cache
def libc_externs() -> dict[str, int]:
    """Return the memory functions of the C library: those that LLVM may call implicitly, and the heap for large
    panels."""
    names = ("memcpy", "memset", "memmove", "memcmp", "malloc", "free")
    return {name: ctypes.cast(getattr(libc(), name), ctypes.c_void_p).value or 0 for name in names}


Rows = list[tuple[int, ...]]


def load_elf(data: bytes, externs: Mapping[str, int] | None = None) -> ElfModule:
    """Load an object. `externs` has the addresses of further functions that it calls.

    Raises:
        FormatError: the bytes are not such an object, are damaged, or call something unknown.
    """
    unmap_unused()
    return _Object(data, {**libc_externs(), **(externs or {})}, ELF_MACHINES[_MACHINE]).load()


@functools.cache
def _flush() -> Callable[[int, int], None]:
    """Return the machine's function that makes written code visible. It has a page of its own, which the system
    makes visible when it becomes executable."""
    code = ELF_MACHINES[_MACHINE].flush
    base = _map(_PAGE)
    ctypes.memmove(base, code, len(code))
    libc().mprotect(base, _PAGE, _READ_EXECUTE)
    return flush_function(base)


def _map(size_bytes: int) -> int:
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    base = libc().mmap(None, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE, private, -1, 0)
    if base in (None, 2**64 - 1):
        raise OutOfMemoryError(
            f"load_elf: out of memory: {size_bytes} bytes of code cannot be mapped. Free some tensors."
        )
    return int(base)


def _damaged(what: str) -> FormatError:
    return FormatError(f"load_elf: {what}. The object is damaged or was not made by this compiler; clear the cache.")


class _Object:
    """An object file during layout: its tables, the address of each section, and the slots for distant addresses."""

    def __init__(self, data: bytes, externs: Mapping[str, int], machine: ElfMachine) -> None:
        wanted = (1, machine.number)
        if len(data) < 64 or data[:7] != b"\x7fELF\x02\x01\x01" or struct.unpack_from("<HH", data, 16) != wanted:
            raise _damaged(f"the bytes are not a relocatable {machine.name} ELF object")
        self.machine = machine
        (offset,), (row_bytes, count) = struct.unpack_from("<Q", data, 40), struct.unpack_from("<HH", data, 58)
        if row_bytes != _SECTION.size or offset + count * row_bytes > len(data):
            raise _damaged("its section table is out of bounds")
        self.data, self.externs = data, externs
        self.sections: Rows = list(_SECTION.iter_unpack(data[offset : offset + count * row_bytes]))
        symtab = next((i for i, section in enumerate(self.sections) if section[1] == _SYMTAB), 0)
        self.symbols = self.table(symtab, _SYMBOL)
        self.names = self.bytes_of(self.section(symtab)[6])
        self.offsets: dict[int, int] = {}  # section -> offset from the base
        self.slots: dict[int, int] = {}  # symbol -> offset of its stub
        self.base = 0

    def section(self, index: int) -> tuple[int, ...]:
        if not 0 <= index < len(self.sections):
            raise _damaged(f"section {index} does not exist")
        return self.sections[index]

    def bytes_of(self, index: int) -> bytes:
        _, _, _, _, offset, size, *_ = self.section(index)
        if offset + size > len(self.data):
            raise _damaged(f"section {index} reaches byte {offset + size} of {len(self.data)}")
        return self.data[offset : offset + size]

    def table(self, index: int, row: struct.Struct) -> Rows:
        raw = self.bytes_of(index)
        if len(raw) % row.size:
            raise _damaged(f"the size of section {index} is not a multiple of its row size")
        return list(row.iter_unpack(raw))

    def name(self, offset: int) -> str:
        end = self.names.find(b"\0", offset)
        if end < 0:
            raise _damaged("a symbol name is out of bounds")
        return self.names[offset:end].decode("utf-8", "replace")

    def load(self) -> ElfModule:
        relocations = {s[7]: self.table(i, _RELA) for i, s in enumerate(self.sections) if s[1] == _RELA_TYPE}
        fixed_bytes, total_bytes = self.lay_out(relocations)
        base = _map(total_bytes)
        module = ElfModule({}, (base, total_bytes))  # from here on an error unmaps
        self.base = base
        image = bytearray(total_bytes)
        for index, start in self.offsets.items():
            if self.sections[index][1] == _PROGBITS:
                raw = self.bytes_of(index)
                image[start : start + len(raw)] = raw
        for symbol, slot in self.slots.items():
            image[slot : slot + _SLOT_BYTES] = self.machine.stub + (self.address(symbol) % 2**64).to_bytes(8, "little")
        for section, rows in relocations.items():
            if section in self.offsets:
                self.relocate(section, rows, image)
        ctypes.memmove(base, bytes(image), total_bytes)
        if libc().mprotect(base, fixed_bytes, _READ_EXECUTE):
            raise OutOfMemoryError("load_elf: the system denies executable memory to this process (mprotect failed).")
        if self.machine.flush:
            _flush()(base, base + fixed_bytes)
        for index, (name, info, _, section, _, _) in enumerate(self.symbols):
            if info >> 4 in (1, 2) and section not in (_UNDEF, _ABS):  # global or weak, and defined
                module.symbols[self.name(name)] = self.address(index)
        return module

    def lay_out(self, relocations: Mapping[int, Rows]) -> tuple[int, int]:
        """Lay out read-only sections (code, constants, address slots) first, writable ones on separate pages."""
        end = fixed_bytes = 0
        for writable in (0, _WRITE):
            for index, (_, kind, flags, _, _, size, _, _, align, _) in enumerate(self.sections):
                # Unwind tables (type 0x70000001) are left out: nothing ever unwinds through a kernel.
                if kind in (_PROGBITS, _NOBITS) and flags & _ALLOC and flags & _WRITE == writable:
                    if align > _PAGE or align & (align - 1) or end + size > _LIMIT_BYTES:
                        raise _damaged(f"section {index} has {size} bytes and alignment {align}")
                    self.offsets[index] = end = round_up(end, max(align, 1))
                    end += size
            if not writable:
                end = fixed_bytes = round_up(max(self.add_slots(relocations, round_up(end, 16)), 1), _PAGE)
        return fixed_bytes, round_up(end, _PAGE)

    def add_slots(self, relocations: Mapping[int, Rows], end: int) -> int:
        for target, rows in relocations.items():
            if self.section(target)[2] & _ALLOC:
                for _, info, _ in rows:
                    symbol, kind = info >> 32, info & 0xFFFFFFFF
                    if symbol >= len(self.symbols):
                        raise _damaged(f"a relocation names symbol {symbol} of {len(self.symbols)}")
                    row = self.machine.relocations.get(kind)
                    through_slot = row is not None and row.through_slot
                    if symbol not in self.slots and (self.symbols[symbol][3] == _UNDEF or through_slot):
                        self.slots[symbol] = end
                        end += _SLOT_BYTES
        return end

    def address(self, index: int) -> int:
        name, _, _, section, value, _ = self.symbols[index]
        if section == _UNDEF:
            text = self.name(name)
            if text not in self.externs:
                raise FormatError(f"load_elf: the object calls {text!r}, which is not among the externs given.")
            return self.externs[text]
        if section == _ABS:
            return value
        if section not in self.offsets or value > self.sections[section][5]:
            raise _damaged(f"symbol {self.name(name)!r} is outside section {section}")
        return self.base + self.offsets[section] + value

    def relocate(self, section: int, rows: Rows, image: bytearray) -> None:
        start, size = self.offsets[section], self.sections[section][5]
        for offset, info, addend in rows:
            index, kind = info >> 32, info & 0xFFFFFFFF
            row = self.machine.relocations.get(kind)
            if row is None:
                raise FormatError(f"load_elf: relocation type {kind} is not supported. Compile with reloc='pic'.")
            if offset + row.form.size > size:
                raise _damaged(f"a relocation at {offset} is outside section {section} of {size} bytes")
            at = start + offset
            try:
                (field,) = row.form.unpack_from(image, at)
                row.form.pack_into(image, at, row.encode(field, self.target(index, row) + addend, self.base + at))
            except struct.error:
                what = f"load_elf: the value of a relocation of type {kind} does not fit its field."
                raise FormatError(f"{what} Compile with reloc='pic'.") from None

    def target(self, index: int, row: Relocation) -> int:
        """The address that a relocation refers to: of the symbol, of a stub, or of the slot with the address."""
        if row.through_slot:
            return self.base + self.slots[index] + _SLOT_BYTES // 2
        if row.is_relative and index in self.slots:
            return self.base + self.slots[index]  # the C library may be out of reach
        return self.address(index)
