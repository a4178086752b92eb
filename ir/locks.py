"""Locks and forks: a child, in which the thread that held a lock is not, finds it free; imports are waited for."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

__all__ = ["before_forks", "process_lock"]

_PATIENCE_S = 1.0  # of a fork: who imports may wait for a lock that the forking thread holds
_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_forking = threading.Condition()
_first: list[int] = []  # threads whose blocks a fork waits for


def process_lock() -> threading.RLock:
    """A lock that a thread may take again while it holds it."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


@contextmanager
def before_forks() -> Generator[None]:
    """A fork in another thread waits for this block, which takes locks that are not ours: Python's, of an import."""
    thread = threading.get_ident()
    with _forking:
        _first.append(thread)
    try:
        yield
    finally:
        with _forking:
            _first.remove(thread)
            _forking.notify_all()


def _before_fork() -> None:
    _forking.acquire()
    _forking.wait_for(lambda: {*_first} <= {threading.get_ident()}, _PATIENCE_S)


def _after_fork() -> None:
    _first[:] = [thread for thread in _first if thread == threading.get_ident()]
    _forking.release()
    for lock in _locks:
        if not lock._is_owned():  # by the thread that forked, which will release it
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_forking.release, after_in_child=_after_fork)
