"""A kernel for people: its UOps after each pass, schedule, source text, assembly, and which line made which.

It is lowered again, with the schedule in force: this is for reports (kernmill/profiling), not for programs.
Tests: tests/runtime/test_pages.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from html import escape
from itertools import pairwise
from typing import NamedTuple

from kernmill.compiler import PIPELINE, kernel_cost, lower, optimize_loops
from kernmill.ir import Kernel, KernmillError, Listings, UOp, has_origin

from .cpu.located import located
from .cpu.located import split_locations as split_locations
from .device import Device
from .kernel_report import counts_of, work_of
from .programs.compile_cache import cache_key
from .programs.compiling import given_actions
from .programs.schedules import given_schedule, stamp, symbol

__all__ = [
    "WHYS", "KernelPage", "Lowered", "PassText", "Passes", "begin_page", "brief_page", "kernel_page", "page_key",
    "passes_of", "relative_names", "split_locations", "texts_of",
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
    """A kernel on its way to a page: all texts, and a function that waits for the assembly and its lines."""

    tables: Listings
    listings: list[tuple[str, str]]
    schedule: str
    code: str
    code_uops: list[int]
    cost: dict[str, float | str]
    assemble: Callable[[float | None], tuple[str, list[int]]] | None = None

    def begun(self, device: Device) -> Lowered:
        """Begin to make the assembly."""
        return self._replace(assemble=device.assembly_later(self.code))

    def finished(self, device: Device, limit_s: float | None = None) -> KernelPage:
        """Return the page; wait up to `limit_s` seconds for the assembly.

        Raises:
            TimeoutError: the assembly is not ready.
        """
        assembly, lines = "", list[int]()
        if self.assemble is not None:
            with suppress(KernmillError):  # the other texts are shown without it
                assembly, lines = self.assemble(limit_s)
        is_llvm = "\ndefine " in f"\n{self.code}"
        language = "LLVM IR" if is_llvm else device.name.partition(":")[0]
        return KernelPage(
            self.tables.heads, self.tables.origins, self.listings, self.schedule, language, self.code,
            self.code_uops, assembly, lines, self.cost,
        )  # fmt: skip


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
    texts = texts_of(device, kernel, *passes_of(device, kernel))
    assemble = partial(_located_here, texts.code, device) if has_assembly else None
    return texts._replace(assemble=assemble).finished(device)


def begin_page(device: Device, kernel: Kernel) -> Lowered:
    """Begin the page of one of many kernels: its assembly is made in another process where the device can do that.

    Raises:
        CompileError, InternalError: the kernel cannot be lowered.
    """
    return texts_of(device, kernel, *passes_of(device, kernel)).begun(device)


def _located_here(code: str, device: Device, limit_s: float | None) -> tuple[str, list[int]]:
    return located(code, device.assembly)


def page_key(device: Device, kernel: Kernel) -> str:
    """Return the key of a page in the cache: as a program's, and the lines of its nodes."""
    lines = "\n".join(sorted({node.origin for node in kernel.ast.toposort() if node.origin and has_origin(node)}))
    return cache_key("page", kernel.key, device.tag, stamp(), given_schedule(device, kernel) or "", lines)


def brief_page(kernel: Kernel) -> KernelPage:
    """Return the UOps before anything is chosen: what there is without lowering the kernel."""
    work, passes = counts_of(kernel.ast), Passes(kernel)
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
