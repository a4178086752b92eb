"""Locks and forks: a child, in which the thread that held a lock is not, finds it free; imports are waited for."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

__all__ = ["at_fork", "before_forks", "fork_helper", "is_helper_fork", "process_lock"]

_PATIENCE_S = 1.0  # of a fork: who imports may wait for a lock that the forking thread holds
_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_forking = threading.Condition()
_helped: set[int] = set()  # threads whose fork is not the user's
_first: list[tuple[int, bool]] = []  # threads whose blocks a fork waits for, and whether it does however long they take
at_fork: Any = getattr(os, "register_at_fork", lambda **_: None)  # where there are no forks, nothing


def process_lock(make: Callable[[], Any] = threading.RLock) -> Any:
    """A lock; by default one that a thread may take again while it holds it."""
    lock = make()
    _locks.add(lock)
    return lock


@contextmanager
def before_forks(*, is_long: bool = False) -> Generator[None]:
    """A fork in another thread waits for this block, which takes locks that are not ours: Python's, of an import; with
    `is_long` to its end, which no lock of the forking thread holds up: LLVM's."""
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
    """os.fork for a child that ends by itself: who counts children leaves it out."""
    _helped.add(threading.get_ident())
    try:
        return os.fork()
    finally:
        _helped.discard(threading.get_ident())


def is_helper_fork() -> bool:
    """Whether the fork that this thread is in is one by `fork_helper`."""
    return threading.get_ident() in _helped


def _before_fork() -> None:
    here = threading.get_ident()

    def others() -> list[bool]:
        return [is_long for thread, is_long in _first if thread != here]

    _forking.acquire()
    while not _forking.wait_for(lambda: not others(), _PATIENCE_S) and any(others()):
        pass  # an import that began meanwhile is waited for as well


def _after_fork() -> None:
    _first[:] = [block for block in _first if block[0] == threading.get_ident()]
    _forking.release()
    for lock in _locks:
        if not getattr(lock, "_is_owned", bool)():  # by the thread that forked, which will release it
            lock._at_fork_reinit()


at_fork(before=_before_fork, after_in_parent=_forking.release, after_in_child=_after_fork)
