"""Assembly in which each instruction has its line of the LLVM IR: the text itself is the debugger's source file.

The assembling processes load this file by its path: it imports only the standard library.
Tests: tests/runtime/test_pages.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

__all__ = ["located", "split_locations", "with_locations"]

_UNIT = 900_000  # above all numbers of metadata in a kernel
_HEAD = """!llvm.dbg.cu = !{!900000}
!llvm.module.flags = !{!900001}
!900000 = distinct !DICompileUnit(language: DW_LANG_C99, file: !900002, emissionKind: LineTablesOnly)
!900001 = !{i32 2, !"Debug Info Version", i32 3}
!900002 = !DIFile(filename: "kernel.ll", directory: ".")
!900003 = !DISubroutineType(types: !900004)
!900004 = !{}
"""


def located(code: str, assemble: Callable[[str], str]) -> tuple[str, list[int]]:
    """Return what `assemble` makes of LLVM IR, and for each of its lines that of the IR, from 0, or -1. What it makes
    of another language has no lines."""
    if "\ndefine " in f"\n{code}":
        return split_locations(assemble(with_locations(code)))
    assembly = assemble(code)
    return assembly, [-1] * (assembly.count("\n") + 1)


def with_locations(code: str) -> str:
    """Return LLVM IR in which each instruction has its own line as its debug location."""
    lines, tail, unit = code.split("\n"), list[str](), _UNIT + 10
    scope = 0
    for number, line in enumerate(lines):
        if line.startswith("define "):
            unit, scope = unit + 1, unit + 1
            lines[number] = f"{line.removesuffix('{')}!dbg !{scope} {{"
            tail.append(
                f'!{scope} = distinct !DISubprogram(name: "k{scope}", scope: !900002, file: !900002, line: 1, '
                "type: !900003, spFlags: DISPFlagDefinition, unit: !900000)"
            )
        elif line.startswith("}"):
            scope = 0
        elif scope and line.startswith("  "):
            lines[number] = f"{line}, !dbg !{_UNIT + 1000 + number}"
            tail.append(f"!{_UNIT + 1000 + number} = !DILocation(line: {number + 1}, column: 1, scope: !{scope})")
    return "\n".join([*lines, _HEAD, *tail]) + "\n"


_LOCATION = r"\s*\.loc\s+\d+\s+(\d+)"  # compiled at the first use
_DEBUGGERS = r"\s*\.(loc|file|cfi_\w+)\b|\.L(tmp|func_begin|func_end)\d+:"


def split_locations(assembly: str) -> tuple[str, list[int]]:
    """Return assembly without what is for debuggers, and for each line that of the source, from 0, or -1."""
    kept: list[str] = []
    found: list[int] = []
    for line, at in _located(assembly.split("\n")):
        kept.append(line)
        found.append(at)
    return "\n".join(kept), found


def _located(lines: Sequence[str]) -> Iterator[tuple[str, int]]:
    at = -1
    is_debug = False
    for line in lines:
        if line.startswith("\t.section"):
            is_debug = ".debug_" in line
        if match := re.match(_LOCATION, line):
            at = int(match.group(1)) - 1
        if is_debug or re.match(_DEBUGGERS, line):
            continue
        is_instruction = line.startswith("\t") and not line.startswith("\t.")
        yield line, at if is_instruction else -1
