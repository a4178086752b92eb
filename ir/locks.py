"""Locks of one process: a forked child, in which the thread that held one is not, finds it free."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

__all__ = ["process_lock"]

_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def process_lock() -> threading.RLock:
    """A lock that a thread may take again while it holds it."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _after_fork() -> None:
    for lock in _locks:
        if not lock._is_owned():  # by the thread that forked, which will release it
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
