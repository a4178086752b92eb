"""The job that this program is a rank of: found when it is first asked for."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import kernmill
from kernmill.runtime import host

from .communicator import Communicator, DistError, Solo
from .mpi import ENDING, MpiCommunicator, job_size

__all__ = ["agree", "communicator", "end", "rank", "size", "use"]

_opened: list[Communicator] = []
_used: ContextVar[Communicator | None] = ContextVar("communicator", default=None)


def communicator() -> Communicator:
    """The ranks of this job: those that `mpirun` started, else one.

    Raises:
        DistError: mpirun started the program, and mpi4py is missing; or ranks have other versions of kernmill.
    """
    used = _used.get()
    if used is not None:
        return used
    if not _opened:
        _opened.append(_open())
    return _opened[0]


def rank() -> int:
    """The number of this copy of the program, from 0."""
    return communicator().rank


def size() -> int:
    """How many copies of the program work together."""
    return communicator().size


@contextmanager
def use(ranks: Communicator) -> Generator[Communicator]:
    """Make these the ranks of this thread inside the block: `run_threads(2, f)`, and in f `with use(ranks):`."""
    token = _used.set(ranks)
    try:
        yield ranks
    finally:
        _used.reset(token)


def agree(what: str, value: Any, ranks: Communicator | None = None, remedy: str = "Start all with the same.") -> None:
    """Compare a value over all ranks, such as the version of a program or the hash of a file.

    Raises:
        DistError: they differ. Rank 0 names the ranks; the others raise the same error.
    """
    found = (ranks or communicator()).all_objects(value)
    others = [number for number, one in enumerate(found) if one != found[0]]
    if others:
        raise DistError(
            f"the ranks differ in {what}: rank 0 has {found[0]}, rank {others[0]} has {found[others[0]]}. {remedy}"
        )


def end(status: int) -> None:
    """End all ranks of the job that `mpirun` started with an exit status; without one nothing happens."""
    if job_size() > 1:
        ENDING.end(status)


def _open() -> Communicator:
    if job_size() == 1:
        return Solo()
    opened = MpiCommunicator()
    agree("the version of kernmill", kernmill.__version__, opened)
    agree("the order of bytes", sys.byteorder, opened)
    host.share_cpus(opened.sharers)
    return opened
