"""A profile, or a DUMP folder, as one HTML file that opens from disk: data for the page `report.html` in this folder.

Texts of kernels are lowered again, the slowest kernels first, and packed; those that do not fit in the time or in the
file are named with the reason. All names reach the page as JSON, in which no character ends a script.
"""

from __future__ import annotations

import base64
import json
import linecache
import os
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from kernmill.ir import (
    GraphPlan,
    Kernel,
    KernmillError,
    MemoryPlan,
    Ops,
    SettingError,
    no_collection,
    split_origin,
)
from kernmill.runtime import (
    WHYS,
    Device,
    KernelPage,
    Lowered,
    Ran,
    Recorder,
    begin_page,
    brief_page,
    compile_cache,
    get_device,
    page_key,
)

from .profiled import Profile
from .rows import KernelRow, ceilings_of, launches, short_layers, short_line
from .table import made_text
from .trace import write_text

__all__ = ["html", "report_data", "report_of_folder", "write_report"]

_PAGE = Path(__file__).with_name("report.html")
_PLACE = "/*DATA*/"
_MOST_SECONDS, _MOST_BYTES = 3.5, 4_400_000  # of texts of kernels that are not in the cache, and of all
_MOST_CROWDED = 4.0  # times as long: a report that takes longer on a busy machine is less use than one without texts
_AT_ONCE = 16  # kernels that are packed together; if none of them fits in the file, later ones are not tried
_WINDOW = 32_700  # of deflate
_AHEAD = 24  # kernels whose assembly is made by other processes
_MANY = 4  # kernels that have parts in common
_MOST_EVENTS, _MOST_GRAPHS, _MOST_NODES, _MOST_PLANS = 40_000, 12, 300, 12
_LEFT_OUT = (
    "The texts of slower kernels took the time for this report. They are in the cache now: the same command again has "
    "more. DUMP=folder and kernmill report have all."
)
_NO_ASSEMBLY = "The assembly was not ready in the time for this report. The same command again has it."
_TOO_LARGE = "The texts of slower kernels fill this report. DUMP=folder has all."
_AROUND = 3  # lines of the user's source above and below
_MOST_SOURCES = 4
Data = dict[str, Any]
Borders: TypeAlias = "Sequence[tuple[str, Sequence[str]]]"


def write_report(path: str | Path, profile: Profile, title: str = "", borders: Borders = ()) -> str:
    """Write the page of a profile. Returns what is not in it yet, or "". `borders`: names of kernels, and why each
    begins and ends where it does.

    Raises:
        SettingError: the file cannot be written.
    """
    data = report_data(profile, title, _seconds())
    write_text(path, html(data | {"borders": borders}))
    late = sum(kernel["reason"] in (_LEFT_OUT, _NO_ASSEMBLY) for kernel in data["kernels"])
    of = f"{late} of {len(data['kernels'])}"
    return f"The texts of {of} kernels were not ready in time. The same command again has more." if late else ""


def _seconds() -> float:
    """The time for texts: more of it while other programs run."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else 1.0
    return _MOST_SECONDS * min(_MOST_CROWDED, max(1.0, load))


def html(data: Data) -> str:
    """Return the page with its data: `<` is written so that no name can end the script or begin a comment. All but the
    texts of kernels, which are unpacked one by one, is packed as one."""
    kernels, shared = _pack_kernels(data["kernels"])
    apart = {"title": data["title"], "about": data["about"], "kernels": kernels}
    rest = {name: part for name, part in data.items() if name not in apart} | {"shared": shared}
    packed = _encoded(zlib.compress(json.dumps(rest, allow_nan=False, default=str).encode()))
    text = json.dumps({**apart, "packed": packed}, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return _PAGE.read_text(encoding="utf-8").replace(_PLACE, text)


def report_data(profile: Profile, title: str = "", seconds: float = _MOST_SECONDS) -> Data:
    """Return what the page shows of a profile."""
    recorder, totals, rows = profile.recorder, profile.totals, profile.rows
    kernels, which = _kernels(rows, seconds, recorder.texts or {})
    sources = _Sources()
    names = {"kernels": totals.kernels_ns, "compiling": totals.compile_ns, "copies": totals.copies_ns,
             "waiting": totals.waiting_ns, "driver": totals.driver_ns, "Python": totals.python_ns}  # fmt: skip
    return {
        "title": title or Path(sys.argv[0]).name or "Python", "wall": max(1, totals.wall_ns), "totals": names,
        "about": f"{time.strftime('%Y-%m-%d %H:%M')}, {made_text(totals)}",
        "devices": {name: _device(name, rows) for name in sorted({row.device for row in rows})},
        "rows": [_row_data(number, row, which, sources) for number, row in enumerate(rows)],
        "sources": sources.found, "kernels": kernels,
        **_timeline(recorder, rows), "memory": list(_memory_points(recorder)), "plans": list(_plans(recorder)),
        "graphs": list(_graphs(recorder, rows)), "whys": WHYS,
        "notes": [{"kind": n.kind, "name": n.name, "reason": n.reason, "taken": n.taken_ns, "compiled": n.compiled}
                  for n in recorder.notes],
    }  # fmt: skip


def _device(name: str, rows: Sequence[KernelRow]) -> Data:
    """The ceilings of a device; those of narrow operands, if a row has such."""
    ceilings = ceilings_of(rows, name)[any(row.is_narrow for row in rows if row.device == name)]
    return {
        "about": get_device(name).description, "flops": ceilings.flops_per_ns, "bytes": ceilings.bytes_per_ns,
        "cached": ceilings.cached_bytes_per_ns,
    }  # fmt: skip


def _row_data(number: int, row: KernelRow, which: dict[str, int], sources: _Sources) -> Data:
    line = short_line(row.line) or "unknown line"
    return {
        "id": number, "name": row.name, "device": row.device, "line": line, "full": row.line,
        "others": [short_line(place) for place in row.others], "layers": short_layers(row.layers),
        "calls": row.calls, "total": row.total_ns, "first": row.first_ns, "median": row.median_ns, "flops": row.flops,
        "moved": row.bytes_moved, "gflops": row.gflops, "gbytes": row.gbytes, "ceiling": row.ceiling_share,
        "bound": row.bound, "writes": row.bytes_written, "sources": sources.of([row.line, *row.others]),
        "kernels": [which[_kernel_key(row.device, kernel)] for kernel in row.kernels],
    }  # fmt: skip


class _Sources:
    """The user's lines, each with those around it. Rows have their numbers."""

    def __init__(self) -> None:
        self.found: list[Data] = []
        self.numbers: dict[str, int | None] = {}

    def of(self, places: Sequence[str]) -> list[int]:
        """The numbers of these lines, those that can be read."""
        lines = list(dict.fromkeys(split_origin(place).line for place in places if place))[:_MOST_SOURCES]
        return [number for line in lines if (number := self._line_number(line)) is not None]

    def _line_number(self, place: str) -> int | None:
        if place not in self.numbers:
            file, _, digits = place.rpartition(":")
            text = linecache.getlines(file)
            is_known = digits.isdigit() and 0 < int(digits) <= len(text)
            self.numbers[place] = len(self.found) if is_known else None
            if is_known:
                first = max(1, int(digits) - _AROUND)
                shown = [line.rstrip("\n")[:400] for line in text[first - 1 : int(digits) + _AROUND]]
                self.found.append({"place": short_line(place), "line": int(digits), "first": first, "text": shown})
        return self.numbers[place]


# --- texts of kernels ------------------------------------------------------------------------------------------------
def _kernel_key(device: str, kernel: Kernel) -> str:
    return f"{device} {kernel.key.hex()}"


def _kernels(
    rows: Sequence[KernelRow], seconds: float, known: Mapping[tuple[str, bytes], Lowered]
) -> tuple[list[Data], dict[str, int]]:
    """The kernels of all rows, the slowest first, and their numbers by key."""
    wanted = {_kernel_key(row.device, kernel): (row.device, kernel) for row in rows for kernel in row.kernels}
    found: list[Data] = []
    begun: deque[Callable[[], Data]] = deque()
    until = time.perf_counter() + seconds
    with no_collection():
        for key, (device, kernel) in wanted.items():
            begun.append(_begin_kernel(key, get_device(device), kernel, known.get((device, kernel.key)), until))
            while begun and (len(begun) > _AHEAD or len(found) + len(begun) == len(wanted)):
                found.append(begun.popleft()())
    return found, {key: number for number, key in enumerate(wanted)}


def _begin_kernel(key: str, device: Device, kernel: Kernel, known: Lowered | None, until: float) -> Callable[[], Data]:
    """Begin the texts of a kernel, unless it is later than `until`; the result finishes them. `known`: those that were
    begun when it was compiled. They are stored in the cache: most kernels of a program are those of its last report."""
    cache, cache_key = compile_cache.default_cache("pages"), page_key(device, kernel)
    if (entry := cache.get(cache_key)) is not None:
        return partial(_kernel_data, key, kernel.name, zlib.decompress(entry.payload))
    if time.perf_counter() > until:
        return partial(_kernel_data, key, kernel.name, brief_page(kernel).json(), _LEFT_OUT)
    try:
        lowered = known or begin_page(device, kernel)
    except KernmillError as error:
        return partial(_kernel_data, key, kernel.name, b"", f"It cannot be lowered: {error}")

    def finished() -> Data:
        try:
            texts = lowered.finished(device, max(0.0, until - time.perf_counter())).json()
        except TimeoutError:
            return _kernel_data(key, kernel.name, lowered._replace(assemble=None).finished(device).json(), _NO_ASSEMBLY)
        cache.put(cache_key, zlib.compress(texts, 1), {"name": kernel.name})
        return _kernel_data(key, kernel.name, texts)

    return finished


def _kernel_data(key: str, name: str, texts: bytes, reason: str = "") -> Data:
    return {"name": name, "key": key, "packed": texts, "reason": reason}


def _pack_kernels(kernels: Sequence[Data]) -> tuple[list[Data], str]:
    """Pack the texts of kernels, each as what follows a text that all share; return that text too. It consists of
    some smaller ones: in these the common parts are close together. What does not fit in the file is left out."""
    texts = sorted((kernel["packed"] for kernel in kernels), key=len)
    some = texts[len(texts) // 8 : len(texts) // 2 : 1 + len(texts) // 32] if len(texts) >= _MANY else []
    shared = b"".join(some)[-_WINDOW:]
    found: list[Data] = []
    size, has_room = 0, True
    while has_room and (group := kernels[len(found) : len(found) + _AT_ONCE]):
        has_room = False
        for kernel, packed in zip(group, _packed_in_threads(shared, group), strict=True):
            fits = size + len(packed) <= _MOST_BYTES
            has_room |= fits
            size += len(packed) if fits else 0
            found.append(kernel | ({"packed": packed} if fits else {"packed": "", "reason": _TOO_LARGE}))
    found += [kernel | {"packed": "", "reason": _TOO_LARGE} for kernel in kernels[len(found) :]]
    return found, _encoded(shared)


def _packed_in_threads(shared: bytes, group: Sequence[Data]) -> list[str]:
    """Pack kernels in two threads: zlib works without Python's lock. While Python ends there are no new threads."""
    try:
        with ThreadPoolExecutor(2) as threads:
            return list(threads.map(partial(_packed_kernel, shared), group))
    except RuntimeError:
        return [_packed_kernel(shared, kernel) for kernel in group]


def _packed_kernel(shared: bytes, kernel: Data) -> str:
    packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_DEFAULT_STRATEGY, shared)
    return _encoded(packer.compress(kernel["packed"]) + packer.flush()) if kernel["packed"] else ""


def _encoded(payload: bytes) -> str:
    return base64.b64encode(payload).decode()


# --- events ----------------------------------------------------------------------------------------------------------
def _timeline(recorder: Recorder, rows: Sequence[KernelRow]) -> Data:
    """Events by lane, in microseconds after the begin: launches by device, then spans by thread."""
    lanes: dict[str, int] = {}
    events: list[tuple[int, float, float, int]] = []
    number = {id(kernel): n for n, row in enumerate(rows) for kernel in row.kernels}
    keys = {(row.device, row.name, kernel.key): n for n, row in enumerate(rows) for kernel in row.kernels}
    spans: dict[str, int] = {}
    for found in launches(recorder):
        name = " + ".join(dict.fromkeys(kernel.name for kernel in found.kernels))
        which = number.get(id(found.kernels[0]), keys.get((found.device, name, found.kernels[0].key), 0))
        lane = lanes.setdefault(found.device, len(lanes))
        for _, start, end in found.calls:
            events.append((lane, (start - recorder.start_ns) / 1e3, (end - start) / 1e3, which))
    threads = {recorder.thread: "Python"}
    for span in recorder.spans:
        lane = lanes.setdefault(threads.setdefault(span.thread, f"thread {len(threads) + 1}"), len(lanes))
        name = f"{span.kind} {os.path.basename(span.name)}"
        at = -1 - spans.setdefault(name, len(spans))
        events.append((lane, (span.start_ns - recorder.start_ns) / 1e3, (span.end_ns - span.start_ns) / 1e3, at))
    cut = ""
    if len(events) > _MOST_EVENTS:
        cut = f"the {_MOST_EVENTS:,} longest of {len(events):,} events"
        events = sorted(events, key=lambda event: -event[2])[:_MOST_EVENTS]
    events.sort(key=lambda event: (event[0], event[1], -event[2]))
    columns = {name: [round(event[n], 2) for event in events] for n, name in enumerate(("lane", "start", "dur", "row"))}
    until = (recorder.end_ns - recorder.start_ns) / 1e3
    return {"lanes": list(lanes), "events": columns, "spans": list(spans), "end": max(1.0, until), "cut": cut}


def _memory_points(recorder: Recorder) -> Iterator[Data]:
    for device in dict.fromkeys(name for _, name, _ in recorder.memory):
        own = [(clock - recorder.start_ns, count) for clock, name, count in recorder.memory if name == device]
        points = [(clock / 1e3, count) for clock, count in own]
        points = points[:: 1 + len(points) // 4000]
        yield {"device": device, "time": [round(t, 1) for t, _ in points], "bytes": [count for _, count in points]}


def _plans(recorder: Recorder) -> Iterator[Data]:
    """The largest plans of intermediates."""
    found = [(sum(memory.arena_bytes.values()), line, graph, memory) for line, graph, memory in recorder.plans]
    known: set[tuple[object, ...]] = set()
    for arena, line, graph, memory in sorted(found, key=lambda plan: -plan[0]):
        same = arena, line, len(graph.items)
        if arena and same not in known and len(known) < _MOST_PLANS:
            known.add(same)
            yield {
                "title": f"{short_line(line)}, {len(graph.items)} kernels", "arena": arena,
                "least": memory.lower_bound_bytes, "unplanned": memory.unplanned_bytes, "steps": len(graph.items),
                "buffers": list(_lives(graph, memory)),
            }  # fmt: skip


def _lives(graph: GraphPlan, memory: MemoryPlan) -> Iterator[Data]:
    """The intermediates of a plan: offset, size, first and last item that uses each."""
    used: dict[int, list[int]] = {}
    for step, item in enumerate(graph.items):
        for number in item.buffers if isinstance(item, Kernel) else (item.source, item.target):
            part = graph.buffers[number].part
            used.setdefault(number if part is None else part[0], []).append(step)
    for number, offset in list(memory.offsets.items())[:2000]:
        steps = used.get(number, [0])
        buffer = graph.buffers[number]
        size = buffer.numel * buffer.dtype.size_bytes
        yield {"offset": offset, "bytes": size, "first": steps[0], "last": steps[-1]}


def _graphs(recorder: Recorder, rows: Sequence[KernelRow]) -> Iterator[Data]:
    """The batches that took longest: kernels, and the buffers that lead from one to another."""
    number = {id(kernel): n for n, row in enumerate(rows) for kernel in row.kernels}
    keys = {(row.device, kernel.key): n for n, row in enumerate(rows) for kernel in row.kernels}
    batches = [ran for ran in recorder.ran.values() if ran.uses and ran.runs]
    batches.sort(key=lambda ran: -sum(clock[-1] - clock[0] for _, clock, _ in ran.runs))
    for ran in batches[:_MOST_GRAPHS]:
        count, calls = len(ran.kernels), len(ran.runs) + ran.more
        more = f"The first {_MOST_NODES} of {count} kernels." if count > _MOST_NODES else ""
        nodes = list(_graph_nodes(ran, [number.get(id(k), keys.get((ran.device, k.key), 0)) for k in ran.kernels]))
        kinds = f"{count} kernel{'s' if count > 1 else ''}, {calls} time{'s' if calls > 1 else ''}"
        line = short_line(split_origin(ran.kernels[-1].origin).line)
        yield {"title": f"{ran.device}: {kinds}, {line}", "nodes": nodes, "more": more}


def _graph_nodes(ran: Ran, which: Sequence[int]) -> Iterator[Data]:
    writers: dict[tuple[int, int, int], int] = {}  # of the memory that was written last
    for place, (kernel, uses) in enumerate(zip(ran.kernels[:_MOST_NODES], ran.uses, strict=False)):
        values = (node for store in kernel.ast.src for value in store.src[1:] for node in value.toposort())
        after: dict[int, int] = {}
        for read in {uses[int(node.arg[0])] for node in values if node.op is Ops.PARAM}:
            after |= {writer: common for written, writer in writers.items() if (common := _common(read, written))}
        line, layer, role = split_origin(kernel.origin)
        shown = short_line(line) + (f", {role.partition(' of ')[0]}" if role else "")
        yield {
            "name": kernel.name, "row": which[place], "after": list(after), "bytes": list(after.values()),
            "line": shown, "layer": layer or role.partition(" of ")[2],
        }  # fmt: skip
        for use in (uses[kernel.buffers.index(number)] for number in kernel.outputs):
            writers = {written: writer for written, writer in writers.items() if not _common(use, written)}
            writers[use] = place


def _common(one: tuple[int, int, int], other: tuple[int, int, int]) -> int:
    """The bytes that two ranges of memory have in common."""
    return max(0, min(one[2], other[2]) - max(one[1], other[1])) if one[0] == other[0] else 0


# --- a DUMP folder ---------------------------------------------------------------------------------------------------
def report_of_folder(folder: str | Path) -> str:
    """Return the page of a DUMP folder. Kernels whose files are absent or damaged are rows with the reason.

    Raises:
        SettingError: there is no such folder, or no kernel in it.
    """
    found = sorted(path for path in Path(folder).glob("*/kernel.json"))
    if not found:
        what = "has no folder of a kernel" if Path(folder).is_dir() else "is not a folder"
        raise SettingError(f"report: {folder} {what}. Give the folder of DUMP=folder python program.py.")
    sources = _Sources()
    rows = list(filter(None, (_dumped_row(path, sources) for path in found)))
    rows.sort(key=lambda row: -row[0]["total"])
    for number, (row, _) in enumerate(rows):
        row |= {"id": number, "kernels": [number]}
    wall = max(1, sum(row["total"] for row, _ in rows))
    data = {
        "title": Path(folder).name, "wall": wall, "totals": {"kernels": wall}, "partial": True,
        "about": f"{len(rows)} of {len(found)} kernels of a DUMP folder could be read; times are those of one launch",
        "devices": {row["device"]: {"flops": 1, "bytes": 1, "cached": 1} for row, _ in rows},
        "rows": [row for row, _ in rows], "kernels": [kernel for _, kernel in rows], "lanes": [], "spans": [],
        "events": {"lane": [], "start": [], "dur": [], "row": []}, "end": 1, "cut": "", "memory": [], "plans": [],
        "graphs": [], "notes": [], "whys": WHYS, "sources": sources.found,
    }  # fmt: skip
    return html(data)


def _dumped_row(path: Path, sources: _Sources) -> tuple[Data, Data] | None:
    """The row and the kernel of a folder; None if its figures cannot be read."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        took, flops, moved = (int(facts.get(name, 0)) for name in ("time_ns", "flops", "bytes"))
        name, device, origin = (str(facts.get(name) or "") for name in ("name", "device", "origin"))
        others = [str(text) for text in facts.get("origins", []) if text != origin]
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    line, layer, role = split_origin(origin)
    shown = f"{line}, {role}" if role else line
    row = {
        "name": name, "device": device or "?", "line": short_line(shown) or "unknown line", "full": shown,
        "others": [short_line(split_origin(text).line) for text in others], "layers": layer, "calls": 1,
        "total": took, "first": took, "median": took, "flops": flops, "moved": moved, "gflops": flops / max(1, took),
        "gbytes": moved / max(1, took), "ceiling": 0, "bound": "", "writes": 0, "sources": sources.of([line]),
    }  # fmt: skip
    try:
        texts, reason = _read_texts(path.with_name("page.json").read_text(encoding="utf-8")), ""
    except (OSError, ValueError, TypeError, KeyError):
        texts, reason = b"", "page.json is absent or damaged: another version wrote the folder, or it is half written."
    return row, _kernel_data(path.parent.name, name, texts, reason)


def _read_texts(text: str) -> bytes:
    """The texts of a kernel, whose fields are checked."""
    fields = json.loads(text)
    for name in KernelPage._fields:
        if isinstance(fields[name], str) != (name in ("schedule", "language", "code", "assembly")):
            raise TypeError(name)
    if not all(name in WHYS and isinstance(listing, str) for name, listing in fields["listings"]):
        raise ValueError("listings")
    return text.encode()
