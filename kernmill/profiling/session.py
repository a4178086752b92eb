"""PROFILE=trace.json: everything that a process does, from the import of kernmill to its end, in one file.

A program that starts others has one file too: each process writes a part, and the first one joins them at its end.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
from pathlib import Path

from kernmill.ir import KernmillError, SettingError, at_fork
from kernmill.runtime import Recorder, recorder

from .profiled import Profile
from .report import write_report
from .trace import Event, trace_events, write_trace

__all__ = ["begin"]

_FIRST = "KERNMILL_PROFILED_BY"  # the process that joins the parts


def begin(path: str) -> None:
    """Record from now on; write the file when the process ends.

    Raises:
        SettingError: the name has another ending, or its folder cannot be written to.
    """
    target = Path(path).absolute()
    if target.suffix not in (".json", ".html"):
        raise SettingError(f"PROFILE={path}: a trace is a .json file, a report an .html file. Give one of these names.")
    if not os.access(target.parent, os.W_OK):
        raise SettingError(f"PROFILE={path}: the folder {target.parent} cannot be written to. Give another one.")
    is_first = os.environ.setdefault(_FIRST, str(os.getpid())) == str(os.getpid())
    recorder.active = now = Recorder()
    now.texts = {} if target.suffix == ".html" else None
    at_fork(after_in_child=_renew)
    atexit.register(_write_at_end, target, now, os.getpid(), is_first)


def _renew() -> None:
    """In a forked child: what the parent recorded is the parent's."""
    if recorder.active is not None:
        recorder.active = Recorder()


def _write_at_end(target: Path, begun: Recorder, process: int, is_first: bool) -> None:
    """Write what this process has; the first one joins the parts of the others."""
    found = recorder.active if os.getpid() != process and recorder.active is not None else begun
    recorder.active = None
    found.finish()
    try:
        if target.suffix == ".html":
            if is_first and os.getpid() == process:
                write_report(target, Profile(found))
            return
        events = trace_events(found)
        if not is_first or os.getpid() != process:
            write_trace(target.with_name(f"{target.name}.{os.getpid()}"), events)
            return
        write_trace(target, [*events, *_joined_parts(target)])
    except KernmillError as error:
        print(f"kernmill: PROFILE: {error}", file=sys.stderr)


def _joined_parts(target: Path) -> list[Event]:
    """The events of other processes; their files are removed."""
    events: list[Event] = []
    for part in sorted(target.parent.glob(f"{target.name}.[0-9]*")):
        with contextlib.suppress(OSError, ValueError, KeyError):  # not a part of ours, or gone
            events += json.loads(part.read_text(encoding="utf-8"))["traceEvents"]
            part.unlink()
    return events
