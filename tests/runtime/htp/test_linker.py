"""The linker: the same bytes as LLD's, where that is installed; damaged objects and unknown functions."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from kernmill.ir import FormatError
from kernmill.runtime import hexagon, linker, llvm_codegen, resident

LLD = os.environ.get("LD_LLD") or shutil.which("ld.lld")
CALL = "declare i32 @f(i32)\ndefine i32 @k(i32 %x) { %y = call i32 @f(i32 %x)\n ret i32 %y }"


def compiled(text: str) -> bytes:
    return llvm_codegen.compile_ir(text, hexagon.hexagon_host(67))


@pytest.mark.skipif(not LLD, reason="there is no ld.lld")
def test_the_same_bytes_as_lld(tmp_path: Path) -> None:
    data = compiled(resident.resident_ir())
    (tmp_path / "k.o").write_bytes(data)
    order = "k.o(.text) k.o(.rodata) k.o(.text.sys)"
    (tmp_path / "k.ld").write_text(
        f"SECTIONS {{ . = 0x20000; .all : {{ {order} }} .bss : {{ *(.bss*) *(.sbss*) }} /DISCARD/ : {{ *(.eh_frame*) "
        "*(.comment) *(.note*) *(.hexagon.attributes) } }"
    )
    command = [str(LLD), "-o", "k.elf", "k.o", "-static", "-e", "_start", "-T", "k.ld"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    theirs = (tmp_path / "k.elf").read_bytes()
    (offset,), (count,) = struct.unpack_from("<I", theirs, 32), struct.unpack_from("<H", theirs, 48)
    sections = [struct.unpack_from("<10I", theirs, offset + 40 * n) for n in range(count)]
    start, size = next((s[4], s[5]) for s in sections if s[3] == 0x20000)
    ours = linker.link(data, 0x20000, {}).data
    words = [(a, b) for a, b in zip(struct.iter_unpack("<I", theirs[start : start + size]),
                                    struct.iter_unpack("<I", ours), strict=True) if a != b]  # fmt: skip
    assert all(a[0] ^ b[0] == 1 << 12 for a, b in words), "a bit that the extender replaces"
    assert len(words) <= 2


def test_a_call_of_a_known_function() -> None:
    image = linker.link(compiled(CALL), 0x100000, {"f": 0x100400})
    assert image.symbols["k"] == 0x100000
    assert image.data != linker.link(compiled(CALL), 0x100000, {"f": 0x100800}).data


def test_an_unknown_function() -> None:
    with pytest.raises(FormatError) as caught:
        linker.link(compiled(CALL), 0x100000, {})
    assert str(caught.value) == "link: the kernel calls 'f', which the resident program does not have."


def test_a_call_that_does_not_reach() -> None:
    with pytest.raises(FormatError, match="does not reach"):
        linker.link(compiled(CALL), 0x100000, {"f": 0x4000000})


@pytest.mark.parametrize("data", [b"", b"\x7fELF\x01\x01" + bytes(60), b"MZ" + bytes(100)])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="not a relocatable Hexagon object"):
        linker.link(data, 0, {})
