"""A kernel for people: its UOps after each pass, schedule, source text, assembly, and which line made which.

It is lowered again, with the schedule in force: this is for reports (kernmill/profiling), not for programs.
Tests: tests/runtime/test_pages.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from html import escape
from itertools import pairwise
from typing import NamedTuple

from kernmill.compiler import PIPELINE, kernel_cost, lower, optimize_loops
from kernmill.ir import Kernel, KernmillError, Listings, UOp, has_origin

from .device import Device
from .kernel_report import cost_of, work_of
from .programs.compile_cache import cache_key
from .programs.compiling import given_actions
from .programs.schedules import given_schedule, stamp, symbol

__all__ = [
    "WHYS", "KernelPage", "Lowered", "PassText", "Passes", "begin_page", "brief_page", "kernel_page", "page_key",
    "passes_of", "relative_names", "split_locations", "texts_of", "with_locations",
]  # fmt: skip


WHYS = {
    "kernel": "the planner's loops over one result, before anything is chosen",
    **{step.name: step.why for step in PIPELINE},
}


class PassText(NamedTuple):
    """The UOps that a pass left, and the reason for its position."""

    name: str
    why: str
    uops: str


class KernelPage(NamedTuple):
    """All texts of a kernel. `listings`: by pass, with their `heads` and `origins` (ir/listing.py). `code_uops`: for
    each line of `code`, that of the last pass, or -1. `assembly_lines`: for each line of `assembly`, that of `code`, or
    -1."""

    heads: list[str]
    origins: list[str]
    listings: list[tuple[str, str]]
    schedule: str
    language: str
    code: str
    code_uops: list[int]
    assembly: str
    assembly_lines: list[int]
    cost: dict[str, float | str]

    @property
    def passes(self) -> list[PassText]:
        """The UOps after each pass that changed something."""
        tables = Listings(self.heads, self.origins)
        return [PassText(name, WHYS[name], tables.text(listing)) for name, listing in self.listings]

    def _repr_html_(self) -> str:
        """Return the texts for notebooks, each to be opened by a click."""
        texts = [("schedule", self.schedule or "none: the loops are unchanged")]
        texts += [(f"{number}. {step.name}: {step.why}", step.uops) for number, step in enumerate(self.passes, 1)]
        texts += [(head, text) for head, text in ((self.language, self.code), ("assembly", self.assembly)) if text]
        return "".join(
            f"<details{'' if number else ' open'}><summary>{escape(head)}</summary><pre>{escape(text)}</pre></details>"
            for number, (head, text) in enumerate(texts)
        )

    def json(self) -> bytes:
        """Return everything as JSON: numbers as differences, which repeat more often."""
        fields = {
            **self._asdict(), "code": relative_names(self.code), "code_uops": _differences(self.code_uops),
            "assembly_lines": _differences(self.assembly_lines),
        }  # fmt: skip
        return json.dumps(fields, separators=(",", ":"), default=str).encode()


_VALUE = re.compile(r"\bv(\d+)\b( =)?")


def relative_names(code: str) -> str:
    """Return generated code in which a value `v12` has the distance to the last one that was defined at the begin of a
    line: `v~1` defines the next one, and in its line `v~3` is the value three before it."""
    last = 0
    found: list[str] = []
    for line in code.split("\n"):
        if "v" in line:
            first = _VALUE.search(line)
            if first is not None and first[2]:
                now = int(first[1])
                rest = _VALUE.sub(partial(_distance, now), line[first.end() :])
                line = f"{line[: first.start()]}v~{now - last} ={rest}"
                last = now
            elif first is not None:
                line = _VALUE.sub(partial(_distance, last), line)
        found.append(line)
    return "\n".join(found)


def _distance(now: int, found: re.Match[str]) -> str:
    return f"v~{now - int(found[1])}{found[2] or ''}"


def _differences(numbers: Sequence[int]) -> list[int]:
    return [now - before for before, now in pairwise((0, *numbers))]


class Lowered(NamedTuple):
    """A kernel on its way to a page: all texts but the assembly."""

    tables: Listings
    listings: list[tuple[str, str]]
    schedule: str
    code: str
    code_uops: list[int]
    cost: dict[str, float | str]


class Passes:
    """Collects the UOps after each pass."""

    def __init__(self, kernel: Kernel) -> None:
        self.tables = Listings()
        self.last: UOp | Sequence[UOp] = kernel.ast
        self.listings = [("kernel", self.tables.add(kernel.ast))]

    def seen(self, name: str, uops: UOp | Sequence[UOp]) -> None:
        """Keep what a pass left, unless it changed nothing."""
        if uops is self.last or (not isinstance(uops, UOp) and uops == self.last):
            return
        listing = self.tables.add(uops)
        if listing != self.listings[-1][1]:
            self.listings.append((name, listing))
        self.last = uops


def passes_of(device: Device, kernel: Kernel) -> tuple[Passes, list[UOp], UOp]:
    """Return the UOps after each pass that changed something, the linear list, and the optimized kernel."""
    found = Passes(kernel)
    ast = optimize_loops(kernel.ast, device.target, given_actions(device, kernel))
    found.seen("optimize", ast)
    return found, lower(ast, device.target, kernel.ast, seen=found.seen), ast


def texts_of(device: Device, kernel: Kernel, passes: Passes, uops: Sequence[UOp], optimized: UOp) -> Lowered:
    """Return all texts of a kernel that was lowered, but the assembly."""
    code, starts = device.renderer.render_mapped(symbol(kernel), uops)
    work, launch = work_of(device, kernel, {}), kernel_cost(uops, device.target)
    cost: dict[str, float | str] = {"flops": work.flops, "bytes": work.bytes_moved, "uops": len(uops)}
    cost |= {"estimate_ns": launch.total_ns, "why": launch.why}
    schedule = "\n".join(getattr(optimized.arg, "actions", ()))
    return Lowered(passes.tables, passes.listings, schedule, code, _by_line(code, starts), cost)


def kernel_page(device: Device, kernel: Kernel, *, has_assembly: bool = True) -> KernelPage:
    """Return everything that there is to see of a kernel.

    Raises:
        CompileError, InternalError: it cannot be lowered.
    """
    return begin_page(device, kernel, has_assembly=has_assembly)()


def begin_page(
    device: Device, kernel: Kernel, *, known: Lowered | None = None, has_assembly: bool = True,
    is_one_of_many: bool = False,
) -> Callable[[], KernelPage]:  # fmt: skip
    """Begin a page, and return a function that finishes it. Assembly of many is made in other processes meanwhile.
    `known`: the texts, if they were kept when the kernel was compiled.

    Raises:
        CompileError, InternalError: the kernel cannot be lowered.
    """
    texts = known or texts_of(device, kernel, *passes_of(device, kernel))
    is_llvm = "\ndefine " in f"\n{texts.code}"
    begin = device.assembly_later if is_one_of_many else partial(partial, device.assembly)
    assemble = begin(with_locations(texts.code) if is_llvm else texts.code) if has_assembly else str
    language = "LLVM IR" if is_llvm else device.name.partition(":")[0]

    def finish() -> KernelPage:
        assembly, lines = "", list[int]()
        with suppress(KernmillError):  # the other texts are shown without it
            assembly = assemble()
            assembly, lines = split_locations(assembly) if is_llvm else (assembly, [-1] * (assembly.count("\n") + 1))
        return KernelPage(
            texts.tables.heads, texts.tables.origins, texts.listings, texts.schedule, language, texts.code,
            texts.code_uops, assembly, lines, texts.cost,
        )  # fmt: skip

    return finish


def page_key(device: Device, kernel: Kernel) -> str:
    """Return the key of a page in the cache: as a program's, and the lines of its nodes."""
    lines = "\n".join(sorted({node.origin for node in kernel.ast.toposort() if node.origin and has_origin(node)}))
    return cache_key("page", kernel.key, device.tag, stamp(), given_schedule(device, kernel) or "", lines)


def brief_page(kernel: Kernel) -> KernelPage:
    """Return the UOps before anything is chosen: what there is without lowering the kernel."""
    work, passes = cost_of(kernel.ast), Passes(kernel)
    cost: dict[str, float | str] = {"flops": work.flops, "bytes": work.bytes_moved, "uops": 0}
    tables = passes.tables
    return KernelPage(tables.heads, tables.origins, passes.listings, "", "", "", [], "", [], cost)


def _by_line(code: str, starts: Sequence[tuple[int, int]]) -> list[int]:
    """For each line of the text, the number of the UOp that wrote it; -1 for none. `starts`: UOps with first lines."""
    found = [-1] * (code.count("\n") + 1)
    for (number, first), (_, end) in pairwise([*starts, (-1, -1)]):
        for line in range(first, min(end if end >= 0 else first + 1, len(found))):
            found[line] = number
    return found


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
