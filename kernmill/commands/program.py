"""Running a user's program inside of a command: a script, or a module by its name."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from kernmill.ir import KernmillError

__all__ = ["run_program"]


def run_program(command: str, program: str, arguments: Sequence[str], what_follows: str) -> bool:
    """Run a script or a module as Python would. Returns True if it ended well; else prints how it ended, and
    `what_follows`. `sys.argv` and `sys.path` are restored.

    Raises:
        KernmillError: the program cannot be found.
    """
    before, process = (sys.argv, list(sys.path)), os.getpid()
    try:
        how = _run(command, program, arguments)
    finally:
        sys.argv, sys.path[:] = before
    if how and os.getpid() == process:  # a child that the program forked shows nothing
        print(f"kernmill {command}: {program} ended {how}; {what_follows}", file=sys.stderr)
    return not how


def _run(command: str, program: str, arguments: Sequence[str]) -> str:
    """Returns how it ended; "" for well."""
    is_file = Path(program).is_file()
    sys.path.insert(0, str(Path(program).resolve().parent) if is_file else "")
    if not is_file and not _is_module(program):
        raise KernmillError(
            f"{command}: {program!r} is neither a file nor a module. Give a script or a module that runs your "
            f"computation: kernmill {command} train.py"
        )
    sys.argv = [program, *arguments]
    try:
        if is_file:
            runpy.run_path(program, run_name="__main__")
        else:
            sys.modules.pop(f"{program}.__main__", None)  # `kernmill profile kernmill run ..`: runpy warns of it
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return "" if end.code in (None, 0) else f"with {end.code}"
    except KeyboardInterrupt:
        return "by Ctrl-C"
    except Exception as error:
        traceback.print_exception(error.with_traceback(_own_frames(error.__traceback__)))
        return f"by {type(error).__name__}"
    return ""


def _own_frames(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from the program's first frame on, as Python itself prints it."""
    files = __file__, "<frozen runpy>", runpy.__file__
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename in files:
        trace = trace.tb_next
    return trace


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a package of it is missing; no name at all
        return False
