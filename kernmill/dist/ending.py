"""A rank that ends with an error ends the whole job. MPI alone would let the others wait for it for ever.

MPICH's launcher is asked to end all, by the line that the library itself sends. So a rank can end the job before MPI
has started, when the others wait in its start. Open MPI's launcher ends a job by a status other than 0.
"""

from __future__ import annotations

import atexit
import os
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from kernmill.ir import KernmillError

__all__ = ["ROLL_CALL_S", "Ending"]

ROLL_CALL_S = 1.0  # for the ranks that still answer to say so


class Ending:
    """Makes a rank that ends with an error end the whole job. `abort` and `leave` are those of MPI once it runs."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._process = os.getpid()  # not that of a fork
        self.status = 0  # of a `sys.exit` under way
        self.abort: Callable[[int], None] = lambda status: None
        self.leave: Callable[[], None] = lambda: None

    def install(self) -> None:
        """From now on, for the whole process."""
        self._exit = sys.exit
        sys.exit, sys.excepthook, threading.excepthook = self._leave, self._fail, self._fail_in_thread
        atexit.register(self._at_exit)

    def _leave(self, status: Any = None, /) -> Any:
        """`sys.exit`: nothing tells us later with which status the program ends."""
        self.status = 0 if status is None else status if isinstance(status, int) else 1
        if isinstance(status, str):
            self._let_rank_0_speak()
        return self._exit(status)

    def _let_rank_0_speak(self) -> None:
        """If rank 0 has the same to say, it ends this one meanwhile."""
        if self._rank:
            time.sleep(ROLL_CALL_S)

    def _fail(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """An exception that nobody caught: show it with the rank, and end all."""
        if isinstance(error, KernmillError):
            self._let_rank_0_speak()
        lines = "".join(traceback.format_exception(kind, error, trace)).splitlines()
        sys.stderr.write("".join(f"[rank {self._rank}] {line}\n" for line in lines))
        self.end(130 if issubclass(kind, KeyboardInterrupt) else 1)

    def _fail_in_thread(self, args: threading.ExceptHookArgs) -> None:
        self._fail(args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback)

    def _at_exit(self) -> None:
        if self.status:
            self.end(self.status)
        elif os.getpid() == self._process:
            self.leave()

    def end(self, status: int) -> None:
        """End all ranks."""
        if os.getpid() == self._process:
            sys.stdout.flush()
            sys.stderr.flush()
            _ask_the_launcher(status)
            self.abort(status)


def _ask_the_launcher(status: int) -> None:
    """Ask MPICH's launcher to end all ranks; it ends this one too."""
    number = os.environ.get("PMI_FD", "")
    if not number.isdigit():
        return
    try:
        if stat.S_ISSOCK(os.fstat(int(number)).st_mode):
            _wait_for_readers()
            os.write(int(number), f"cmd=abort exitcode={status}\n".encode())
            time.sleep(ROLL_CALL_S)
    except OSError:  # a child of a rank has the variable, and not the socket
        return


def _wait_for_readers() -> None:
    """Return when the launcher has read what this rank has written to its pipes: it drops the rest as it ends."""
    import fcntl  # not on Windows, where the launcher is another one
    import termios

    end = time.monotonic() + ROLL_CALL_S
    for descriptor in (1, 2):
        while stat.S_ISFIFO(os.fstat(descriptor).st_mode) and time.monotonic() < end:
            if not any(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))):
                break
            time.sleep(0.001)
