"""Locks and forks: a forked child finds our locks free, and a fork waits for imports in other threads."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

__all__ = ["at_fork", "before_forks", "fork_helper", "is_helper_fork", "process_lock"]

_PATIENCE_S = 1.0  # how long a fork waits: an import may itself wait for a lock that the forking thread owns
_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_forking = threading.Condition()
_helped: set[int] = set()  # threads that fork a helper process
# threads whose blocks a fork waits for, and whether it waits for their end without limit
_first: list[tuple[int, bool]] = []
at_fork: Any = getattr(os, "register_at_fork", lambda **_: None)  # without forks: does nothing


def process_lock(make: Callable[[], Any] = threading.RLock) -> Any:
    """Return a lock; by default a reentrant one."""
    lock = make()
    _locks.add(lock)
    return lock


@contextmanager
def before_forks(*, is_long: bool = False) -> Generator[None]:
    """Make a fork in another thread wait for this block, which takes locks that are not ours, such as Python's
    import lock. `is_long`: wait for its end without limit; it must not need a lock of the forking thread (LLVM)."""
    block = threading.get_ident(), is_long
    with _forking:
        _first.append(block)
    try:
        yield
    finally:
        with _forking:
            _first.remove(block)
            _forking.notify_all()


def fork_helper() -> int:
    """Fork a child that exits without running user code, so that user callbacks can ignore it."""
    _helped.add(threading.get_ident())
    try:
        return os.fork()
    finally:
        _helped.discard(threading.get_ident())


def is_helper_fork() -> bool:
    """True if the current fork of this thread is one by `fork_helper`."""
    return threading.get_ident() in _helped


def _before_fork() -> None:
    here = threading.get_ident()

    def others() -> list[bool]:
        return [is_long for thread, is_long in _first if thread != here]

    _forking.acquire()
    while not _forking.wait_for(lambda: not others(), _PATIENCE_S) and any(others()):
        pass  # an import that has begun meanwhile is waited for too


def _after_fork() -> None:
    _first[:] = [block for block in _first if block[0] == threading.get_ident()]
    _forking.release()
    for lock in _locks:
        if not getattr(lock, "_is_owned", bool)():  # by the thread that forked, which will release it
            lock._at_fork_reinit()


at_fork(before=_before_fork, after_in_parent=_forking.release, after_in_child=_after_fork)
