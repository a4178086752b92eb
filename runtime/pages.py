"""A kernel for people: its UOps after each pass, schedule, source text, assembly, and which line made which.

It is lowered again, with the schedule in force: this is for reports (kernmill/profiling), not for programs.
Tests: tests/runtime/test_pages.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from html import escape
from itertools import pairwise
from typing import NamedTuple

from kernmill.compiler import PIPELINE, lower, optimize_loops, show_schedule
from kernmill.ir import Kernel, KernmillError, UOp, print_uops

from .device import Device
from .profile import cost_of, work_of
from .programs.compiling import schedule_of
from .programs.schedules import symbol

__all__ = ["KernelPage", "PassText", "brief_page", "kernel_page", "passes_of", "split_locations", "with_locations"]


_WHY_KERNEL = "the planner's loops over one result, before anything is chosen"


class PassText(NamedTuple):
    """The UOps that a pass left, and the reason for its position."""

    name: str
    why: str
    uops: str


class KernelPage(NamedTuple):
    """All texts of a kernel. `code_uops`: for each line of `code`, that of the last of `passes`, or -1.
    `assembly_lines`: for each line of `assembly`, that of `code`, or -1."""

    passes: list[PassText]
    schedule: str
    language: str
    code: str
    code_uops: list[int]
    assembly: str
    assembly_lines: list[int]
    cost: dict[str, float]

    def _repr_html_(self) -> str:
        """Return the texts for notebooks, each to be opened by a click."""
        texts = [("schedule", self.schedule or "none: the loops are unchanged")]
        texts += [(f"{number}. {step.name}: {step.why}", step.uops) for number, step in enumerate(self.passes, 1)]
        texts += [(head, text) for head, text in ((self.language, self.code), ("assembly", self.assembly)) if text]
        return "".join(
            f"<details{'' if number else ' open'}><summary>{escape(head)}</summary><pre>{escape(text)}</pre></details>"
            for number, (head, text) in enumerate(texts)
        )

    def fields(self) -> dict[str, object]:
        """Return everything as dicts and lists, for JSON."""
        return {**self._asdict(), "passes": [step._asdict() for step in self.passes]}


def passes_of(device: Device, kernel: Kernel) -> tuple[list[PassText], list[UOp]]:
    """Return the UOps after each pass that changed something, and the linear list."""
    found = [PassText("kernel", _WHY_KERNEL, print_uops(kernel.ast))]
    whys = {step.name: step.why for step in PIPELINE}

    def seen(name: str, uops: UOp | Sequence[UOp]) -> None:
        text = print_uops(uops)
        if text != found[-1].uops:
            found.append(PassText(name, whys[name], text))

    ast = optimize_loops(kernel.ast, device.target, schedule_of(device, kernel))
    seen("optimize", ast)
    uops = lower(ast, device.target, kernel.ast, seen=seen)
    return found, uops


def kernel_page(device: Device, kernel: Kernel, *, has_assembly: bool = True) -> KernelPage:
    """Return everything that there is to see of a kernel.

    Raises:
        CompileError, InternalError: it cannot be lowered.
    """
    passes, uops = passes_of(device, kernel)
    code, starts = device.renderer.render_mapped(symbol(kernel), uops)
    assembly, lines = "", list[int]()
    if has_assembly:
        with suppress(KernmillError):  # the other texts are shown without it
            assembly, lines = _assembly(device, code)
    work = work_of(device, kernel, {})
    cost = {"flops": work.flops, "bytes": work.bytes_moved, "estimate_ns": work.work_ns, "uops": len(uops)}
    language = "LLVM IR" if "\ndefine " in f"\n{code}" else device.name.partition(":")[0]
    return KernelPage(
        passes,
        show_schedule(schedule_of(device, kernel)),
        language,
        code,
        _by_line(code, starts),
        assembly,
        lines,
        cost,
    )


def brief_page(kernel: Kernel) -> KernelPage:
    """Return the UOps before anything is chosen: what there is without lowering the kernel."""
    work = cost_of(kernel.ast)
    cost = {"flops": work.flops, "bytes": work.bytes_moved, "estimate_ns": work.work_ns, "uops": 0}
    return KernelPage([PassText("kernel", _WHY_KERNEL, print_uops(kernel.ast))], "", "", "", [], "", [], cost)


def _by_line(code: str, starts: Sequence[tuple[int, int]]) -> list[int]:
    """For each line of the text, the number of the UOp that wrote it; -1 for none. `starts`: UOps with first lines."""
    found = [-1] * (code.count("\n") + 1)
    for (number, first), (_, end) in pairwise([*starts, (-1, -1)]):
        for line in range(first, min(end if end >= 0 else first + 1, len(found))):
            found[line] = number
    return found


def _assembly(device: Device, code: str) -> tuple[str, list[int]]:
    if "\ndefine " not in f"\n{code}":
        text = device.assembly(code)
        return text, [-1] * (text.count("\n") + 1)
    return split_locations(device.assembly(with_locations(code)))


# --- LLVM: the text itself is the debugger's source file -----------------------------------------------------------
_UNIT = 900_000  # above all numbers of metadata in a kernel
_HEAD = """!llvm.dbg.cu = !{!900000}
!llvm.module.flags = !{!900001}
!900000 = distinct !DICompileUnit(language: DW_LANG_C99, file: !900002, emissionKind: LineTablesOnly)
!900001 = !{i32 2, !"Debug Info Version", i32 3}
!900002 = !DIFile(filename: "kernel.ll", directory: ".")
!900003 = !DISubroutineType(types: !900004)
!900004 = !{}
"""


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


_LOCATION = re.compile(r"\s*\.loc\s+\d+\s+(\d+)")
_DEBUGGERS = re.compile(r"\s*\.(loc|file|cfi_\w+)\b|\.L(tmp|func_begin|func_end)\d+:")


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
        if match := _LOCATION.match(line):
            at = int(match.group(1)) - 1
        if is_debug or _DEBUGGERS.match(line):
            continue
        is_instruction = line.startswith("\t") and not line.startswith("\t.")
        yield line, at if is_instruction else -1
