"""From the events of a recorder to rows: a kernel at a line, with its calls, times, work and ceiling.

Launches of the same kernel at the same line are one row, whatever layer they belong to; layers are listed. The first
call of each launch is apart: it meets cold caches and fresh memory. Work is estimated after the profile.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import NamedTuple

from kernmill.compiler import Estimate
from kernmill.ir import Kernel, Ops, UOp, dtypes, in_run, memory_of, show_ns, split_origin
from kernmill.runtime import KernelPage, Ran, Recorder, Span, device_rates, get_device, kernel_page, work_of

__all__ = [
    "KernelRow", "Launches", "Totals", "ceilings_of", "launches", "rows_of", "short_layers", "short_line", "totals_of",
]  # fmt: skip

_UPDATE = "update"
_SURE_NS, _SURE_CALL_NS = 20_000, 2_000  # rates of less are noise of the clock
_MOST_SAMPLES = 4096  # of a row, that its median is of


class Launches(NamedTuple):
    """Calls of one entry of a batch: its kernels, and for each call the thread, the start and the end in ns."""

    device: str
    kernels: tuple[Kernel, ...]
    lines: Sequence[str | None] | None
    calls: list[tuple[int, int, int]]
    values: list[Mapping[str, int]]  # of variables, by call
    more: int  # calls whose clock was not kept
    more_ns: int


@dataclass(slots=True)
class KernelRow:
    """A kernel at a line of the user's program. Units: ns, floating-point operations, bytes."""

    device: str
    name: str
    line: str  # "" if unknown
    kernels: list[Kernel]
    others: list[str] = field(default_factory=list[str])  # further lines that were fused into it
    layers: list[str] = field(default_factory=list[str])
    calls: int = 0
    total_ns: int = 0
    first_ns: int = 0  # the slowest first call of a launch
    times: list[int] = field(default_factory=list[int])  # of later calls
    flops: int = 0
    bytes_moved: int = 0
    bytes_written: int = 0  # by one call: the memory that its results take
    works: list[tuple[Estimate, int]] = field(default_factory=list["tuple[Estimate, int]"])  # of calls, and how many
    least_ns: float = 0.0  # of all calls at the ceilings
    bound: str = ""  # what binds it: compute, memory or launch
    is_narrow: bool = False  # a kernel has an input narrower than float32

    def pages(self) -> list[KernelPage]:
        """The texts of its kernels: UOps by pass, schedule, code, assembly.

        Raises:
            CompileError, InternalError: one cannot be lowered.
        """
        return [kernel_page(get_device(self.device), kernel) for kernel in self.kernels]

    def _repr_html_(self) -> str:
        """Return the figures and the texts of the kernels, for notebooks."""
        places = ", ".join(dict.fromkeys(map(short_line, filter(None, (self.line, *self.others)))))
        many = f"{self.calls:,} call{'s' if self.calls > 1 else ''}"
        head = (
            f"<b>{escape(self.name)}</b> on {escape(self.device)}: {many}, {show_ns(self.total_ns)} in "
            f"all, {self.ceiling_share:.0%} of the {self.bound} ceiling<br>{escape(places)}"
        )
        return head + "".join(page._repr_html_() for page in self.pages())

    @property
    def median_ns(self) -> float:
        """The median of all calls but the first; of a single call its time."""
        return statistics.median(self.times or [self.first_ns])

    @property
    def steady_ns(self) -> float:
        """The time of all calls at the pace of the later ones: first calls meet cold caches and fresh memory, and a
        busy machine stretches some. Rates are of this."""
        if len({work for work, _ in self.works}) > 1 and self.times:  # sizes that change
            return self.calls * sum(self.times) / len(self.times)
        return self.calls * self.median_ns

    def is_cached(self, cache_bytes: int) -> bool:
        """True if the data of a call may be in a cache."""
        return self.bytes_moved <= cache_bytes * self.calls

    @property
    def gflops(self) -> float:
        """Floating-point operations per nanosecond, of later calls."""
        return self.flops / max(1, self.steady_ns)

    @property
    def gbytes(self) -> float:
        """Bytes per nanosecond, of inputs and results counted once, of later calls."""
        return self.bytes_moved / max(1, self.steady_ns)

    @property
    def ceiling_share(self) -> float:
        """The time at the ceiling that binds it, divided by its time; of a kernel so short that the clock's noise is in
        it at most 1."""
        return min(1.0, self.least_ns / max(1, self.steady_ns))


class Totals(NamedTuple):
    """The parts of the wall time. Units: ns. They add up to `wall_ns`, unless threads ran kernels at the same time."""

    wall_ns: int
    kernels_ns: int
    compile_ns: int  # planning, lowering, compiling, loading programs
    copies_ns: int
    waiting_ns: int
    driver_ns: int  # around the kernels of a device that works by itself: submitting, and compiling at a first launch
    python_ns: int  # all else: the program's Python and kernmill's
    compiled: int
    loaded: int


def launches(recorder: Recorder) -> Iterator[Launches]:
    """The entries of all batches."""
    for ran in recorder.ran.values():
        for entry, (begin, end) in enumerate(pairwise((0, *ran.ends))):
            yield _entry(ran, entry, ran.kernels[begin:end])


def _entry(ran: Ran, entry: int, kernels: tuple[Kernel, ...]) -> Launches:
    calls = [(thread, clock[entry], clock[entry + 1]) for thread, clock, _ in ran.runs]
    values = [given for _, _, given in ran.runs] if any(kernel.variables for kernel in kernels) else []
    return Launches(ran.device, kernels, ran.lines, calls, values, ran.more, ran.more_ns[entry] if ran.more_ns else 0)


def rows_of(recorder: Recorder) -> list[KernelRow]:
    """The rows of a profile, those that took longest first."""
    rows: dict[tuple[str, ...], KernelRow] = {}
    for found in launches(recorder):
        head = found.kernels[-1]
        name = " + ".join(dict.fromkeys(kernel.name for kernel in found.kernels))
        lines = [in_run(text, found.lines) for kernel in (head, *found.kernels) for text in kernel.made()[1]]
        lines = [in_run(text, head.lines) for text in lines]
        shown = _line_of(lines[0]) if lines else ""
        key = found.device, name, shown, *(kernel.key.hex() for kernel in found.kernels)
        if (row := rows.get(key)) is None:
            row = rows[key] = KernelRow(found.device, name, shown, list(found.kernels))
            row.is_narrow = any(map(_is_narrow, found.kernels))
        _note(row.others, [place for place in map(_line_of, lines) if place != shown])
        _note(row.layers, [place for place in map(_layer_of, lines) if place])
        _add_calls(row, found)
    _bind(list(rows.values()))
    return sorted(rows.values(), key=lambda row: -row.total_ns)


def ceilings_of(rows: Sequence[KernelRow], device: str) -> dict[bool, device_rates.Ceilings]:
    """Return the ceilings of a device: those that were measured, or the rates of rows where they are higher, as on a
    machine that was busy before. By whether a kernel has narrow operands, which matrix units multiply faster."""
    measured = device_rates.measured_ceilings(get_device(device))
    own = [row for row in rows if row.device == device and row.total_ns >= _SURE_NS and row.median_ns >= _SURE_CALL_NS]
    found: dict[bool, device_rates.Ceilings] = {}
    for is_narrow in (False, True):
        flops = max([measured.flops_per_ns, *(row.gflops for row in own if row.is_narrow <= is_narrow)])
        memory, cached = (
            [row.gbytes for row in own if row.is_cached(measured.cache_bytes) is fits] for fits in (False, True)
        )
        beyond = max([measured.bytes_per_ns, *memory])
        near = max([beyond, measured.cached_bytes_per_ns, *cached])
        found[is_narrow] = measured._replace(flops_per_ns=flops, bytes_per_ns=beyond, cached_bytes_per_ns=near)
    return found


def _bind(rows: Sequence[KernelRow]) -> None:
    """Give each row the time that its calls take at the ceilings, and what binds it."""
    ceilings = {name: ceilings_of(rows, name) for name in {row.device for row in rows}}
    for row in rows:
        at = ceilings[row.device][row.is_narrow]
        for work, calls in row.works:
            bounds = {
                "compute": work.flops / at.flops_per_ns,
                "memory": work.bytes_moved
                / (at.cached_bytes_per_ns if work.bytes_moved <= at.cache_bytes else at.bytes_per_ns),
                "launch": at.launch_ns if get_device(row.device).limits.is_async else 0.0,
            }
            row.bound = max(bounds, key=lambda name: bounds[name])
            row.least_ns += calls * bounds[row.bound]


def _line_of(origin: str) -> str:
    line, _, role = split_origin(origin)
    role = _UPDATE if role.startswith(_UPDATE) else role
    return f"{line}, {role}" if role else line


def _layer_of(origin: str) -> str:
    """The layer; of an update, the parameter."""
    _, layer, role = split_origin(origin)
    return role.removeprefix(f"{_UPDATE} of ") if role.startswith(_UPDATE) else layer


def _note(known: list[str], more: Iterable[str]) -> None:
    known += [text for text in dict.fromkeys(more) if text not in known]


def _add_calls(row: KernelRow, found: Launches) -> None:
    """Add the calls of an entry to its row."""
    times = [end - start for _, start, end in found.calls]
    calls = len(times) + found.more
    row.calls += calls
    row.total_ns += sum(times) + found.more_ns
    row.first_ns = max(row.first_ns, *times[:1])
    row.times += times[1 :: 1 + len(times) // _MOST_SAMPLES]
    row.bytes_written = max(row.bytes_written, sum(_result_bytes(kernel) for kernel in found.kernels))
    for kernel in found.kernels:
        _add_work(row, found, kernel, calls)


def _add_work(row: KernelRow, found: Launches, kernel: Kernel, calls: int) -> None:
    """Add the work of all calls."""
    device = get_device(found.device)
    for values, times in _by_values(kernel, found, calls):
        work = work_of(device, kernel, values)
        row.works.append((work, times))
        row.flops += times * work.flops
        row.bytes_moved += times * work.bytes_moved


def _by_values(kernel: Kernel, found: Launches, calls: int) -> Iterator[tuple[Mapping[str, int], int]]:
    """The values of the kernel's variables, and how many calls had them."""
    names = [name for name, _, _ in kernel.variables]
    if not names or not found.values:
        yield {}, calls
        return
    for values, times in Counter(tuple(given[name] for name in names) for given in found.values).items():
        yield dict(zip(names, values, strict=True)), times


def _is_narrow(kernel: Kernel) -> bool:
    params = (node for node in kernel.ast.toposort() if node.op is Ops.PARAM)
    return any(not p.dtype.is_bool and p.dtype.size_bytes < dtypes.float32.size_bytes for p in params)


def _result_bytes(kernel: Kernel) -> int:
    """The bytes of the results of one call."""
    params: set[UOp] = {memory_of(store.src[0]) for store in kernel.ast.src}
    return sum(int(param.arg[1]) * param.dtype.size_bytes for param in params)


def totals_of(recorder: Recorder, rows: Sequence[KernelRow]) -> Totals:
    """Return the parts of the time of the thread that made the profile."""
    own = [span for span in recorder.spans if span.thread == recorder.thread]
    kinds = Counter[str]()
    for span, took in _own_times(own):
        kinds[_GROUPS.get(span.kind, "python")] += took
    wall = recorder.end_ns - recorder.start_ns
    ran = sum(row.total_ns for row in rows)
    compiled = (
        sum(span.kind == "compile" for span in recorder.spans) // 2
    )  # begun, and finished: runtime/programs/build.py
    loaded = sum(span.kind == "load" for span in recorder.spans) - compiled
    compile_ns, copies, waiting, driver = (kinds[name] for name in ("compile", "copies", "waiting", "driver"))
    rest = max(0, wall - ran - compile_ns - copies - waiting - driver)
    return Totals(wall, ran, compile_ns, copies, waiting, driver, rest, compiled, loaded)


_GROUPS = {"plan": "compile", "compile": "compile", "load": "compile", "copy": "copies", "wait": "waiting",
           "driver": "driver"}  # fmt: skip


def _own_times(spans: Sequence[Span]) -> Iterator[tuple[Span, int]]:
    """Each span with its time without that of the spans inside it."""
    inside = Counter[int]()
    open_: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
        while open_ and open_[-1].end_ns <= span.start_ns:
            open_.pop()
        if open_:
            inside[id(open_[-1])] += span.end_ns - span.start_ns
        open_.append(span)
    for span in spans:
        yield span, span.end_ns - span.start_ns - inside[id(span)]


def short_line(place: str) -> str:
    """A line without the folders of its file; in a notebook with its cell: `In[3]:2`."""
    file, colon, line = place.rpartition(":")
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    name_of = getattr(getattr(shell, "compile", None), "format_code_name", None)  # IPython 8.0 and later
    named = name_of(file) if name_of is not None else None
    return f"{named[1]}{colon}{line}" if named else os.path.basename(place)


_NUMBER = re.compile(r"(?<=[.\[])\d+(?=[.\]]|$)")


def short_layers(layers: Sequence[str]) -> str:
    """Layers that differ in their numbers only as one: `blocks.0-11.attn.q`; of others the first, and how many. A layer
    that contains another one of them is not shown: what it computes itself was fused into that."""
    patterns: dict[str, list[int]] = {}
    for layer in layers:
        if any(other.startswith(f"{layer}.") for other in layers):
            continue
        found = _NUMBER.search(layer)
        pattern = layer if found is None else f"{layer[: found.start()]}\0{layer[found.end() :]}"
        patterns.setdefault(pattern, []).extend([] if found is None else [int(found.group())])
    if not patterns:
        return ""
    first, numbers = next(iter(patterns.items()))
    span = f"{min(numbers)}-{max(numbers)}" if len(numbers) > 1 else "".join(map(str, numbers))
    return first.replace("\0", span) + (f" and {len(patterns) - 1} more" if len(patterns) > 1 else "")
