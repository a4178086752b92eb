"""`kernmill profile`: run a program, and show which of its lines took the time, and what they became."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from kernmill.ir import SettingError

from ..profiling import profile
from ..profiling.report import report_of_folder, write_report
from ..profiling.table import wrapped
from ..profiling.trace import trace_events, write_text, write_trace
from .program import run_program

__all__ = ["run"]


def run(program: str, arguments: Sequence[str], *, most: int, page: str = "", trace: str = "") -> int:
    """Run the program and print the table of up to `most` rows; write the report `page` and the file `trace` if they
    have names. Returns 1 if the program failed.

    Raises:
        KernmillError: the program cannot be found; a file cannot be written.
    """
    for name in filter(None, (page, trace)):
        if not os.access(Path(name).absolute().parent, os.W_OK):
            raise SettingError(f"profile: the folder of {name} cannot be written to. Give a file in another one.")
    process = os.getpid()
    with profile() as found:
        found.recorder.texts = {} if page else None
        ended_well = run_program("profile", program, arguments, "what it launched is still shown")
    if os.getpid() != process:  # a child that the program forked: the parent shows the profile
        return 0 if ended_well else 1
    sys.stdout.flush()
    print(f"\n{found.text(most)}")
    if page:
        late = write_report(page, found, Path(program).name)
        print(f"\n{page}: the report; open it in a browser", *([wrapped(late)] if late else []), sep="\n")
    if trace:
        write_trace(trace, trace_events(found.recorder, Path(program).name))
        print(f"\n{trace}: the trace; open it at ui.perfetto.dev or chrome://tracing")
    return 0 if ended_well else 1


def report(folder: str, output: str) -> None:
    """Write the page of a DUMP folder.

    Raises:
        SettingError: there is no kernel in the folder; the file cannot be written.
    """
    write_text(output, report_of_folder(folder))
    print(f"{output}: the report; open it in a browser")
