"""A profile in the format of Chrome's and Perfetto's trace viewers, one JSON file.

Processes are processes, threads are threads; each device has a row for what a thread has it run. Arrows lead from the
launch on a thread to the run on the device. The clock is the system's monotonic one, so files of several processes
share it.

Perfetto leaves out slices of a row that overlap without one being inside the other. It binds an arrow to the slice of
its row that began last, in the order of times and then of the file. Numbers of arrows are those of the whole file.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kernmill.ir import SettingError, in_run, split_origin
from kernmill.runtime import Recorder

from .rows import launches

__all__ = ["trace_events", "write_text", "write_trace"]

_DEVICES = 1_000_000  # above all numbers of threads in a trace
_MOST_EVENTS = 400_000
_MOST_ARROWS = 1_000_000  # of a process, more than its events
Event = dict[str, Any]


def trace_events(recorder: Recorder, program: str = "") -> list[Event]:
    """Every launch, span, counter and arrow as a trace event; times in microseconds. `program`: another name of the
    process than that of its script."""
    pid = os.getpid()
    threads = {recorder.thread: 1}
    events: list[Event] = [_naming(pid, 0, "process_name", f"{program or Path(sys.argv[0]).name} (pid {pid})")]
    for event in (*_spans(recorder, pid, threads), *_launches(recorder, pid, threads), *_counters(recorder, pid)):
        events.append(event)
        if len(events) > _MOST_EVENTS:
            break
    for number in threads.values():
        events.append(_naming(pid, number, "thread_name", "Python" if number == 1 else f"Python thread {number}"))
    return events


def _naming(pid: int, tid: int, kind: str, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _number(threads: dict[int, int], thread: int) -> int:
    return threads.setdefault(thread, len(threads) + 1)


def _spans(recorder: Recorder, pid: int, threads: dict[int, int]) -> Iterator[Event]:
    for span in sorted(recorder.spans, key=lambda span: (span.start_ns, -span.end_ns)):  # the outer ones first
        args = {"line": span.line} if span.line else {}
        if span.nbytes:
            args["bytes"] = str(span.nbytes)
        yield {
            "ph": "X", "cat": span.kind, "name": f"{span.kind} {os.path.basename(span.name)}", "pid": pid,
            "tid": _number(threads, span.thread), "ts": span.start_ns / 1e3, "dur": (span.end_ns - span.start_ns) / 1e3,
            "args": args,
        }  # fmt: skip
    for note in recorder.notes:
        yield {
            "ph": "i", "s": "p", "cat": note.kind, "name": f"{note.kind}: {note.reason}", "pid": pid, "tid": 1,
            "ts": note.end_ns / 1e3, "args": {"of": note.name, "compiled": note.compiled},
        }  # fmt: skip


def _launches(recorder: Recorder, pid: int, threads: dict[int, int]) -> Iterator[Event]:
    rows: dict[tuple[str, int], int] = {}
    arrow = pid * _MOST_ARROWS
    for found in launches(recorder):
        name = " + ".join(dict.fromkeys(kernel.name for kernel in found.kernels))
        head = found.kernels[-1]
        origins = [in_run(text, found.lines) for text in head.made()[1]] or [head.origin or ""]
        line, layer, role = split_origin(origins[0])
        args = {key: text for key, text in (("line", line), ("layer", layer), ("role", role)) if text}
        for thread, start, end in found.calls:
            arrow += 1
            own = {"pid": pid, "ts": start / 1e3}
            shared = {"cat": "launch", "name": "launch", "id": arrow, **own}
            tid = _number(threads, thread)
            if (found.device, tid) not in rows:
                rows[found.device, tid] = _DEVICES + len(rows)
                shown = f"device {found.device}" + (f", Python thread {tid}" if tid > 1 else "")
                yield _naming(pid, rows[found.device, tid], "thread_name", shown)
            row, dur = rows[found.device, tid], (end - start) / 1e3
            yield {"ph": "X", "cat": "launch", "name": f"launch {name}", "tid": tid, "dur": dur, **own}
            yield {"ph": "s", "tid": tid, **shared}
            yield {"ph": "X", "cat": "kernel", "name": name, "tid": row, "dur": dur, "args": args, **own}
            yield {"ph": "f", "bp": "e", "tid": row, **shared}


def _counters(recorder: Recorder, pid: int) -> Iterator[Event]:
    for clock, device, count in recorder.memory:
        yield {"ph": "C", "name": f"memory of {device}", "pid": pid, "ts": clock / 1e3, "args": {"bytes": count}}
    for number, (clock, what) in enumerate(recorder.ticks, 1):
        yield {"ph": "C", "name": what, "pid": pid, "ts": clock / 1e3, "args": {what: number}}


def write_trace(path: str | Path, events: Iterable[Event]) -> None:
    """Write a trace file.

    Raises:
        SettingError: the file cannot be written.
    """
    write_text(path, json.dumps({"traceEvents": list(events), "displayTimeUnit": "ms"}))


def write_text(path: str | Path, text: str) -> None:
    """Write a file under another name first, so that nobody reads half of it.

    Raises:
        SettingError: the file cannot be written.
    """
    path, name = Path(path), ""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError as error:
        if name:
            Path(name).unlink(missing_ok=True)
        reason = error.strerror or type(error).__name__
        raise SettingError(
            f"{path} cannot be written ({reason}). Give a file in a folder that you may write to."
        ) from None
