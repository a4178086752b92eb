"""Garbage collection is off while many nodes are created, which form no cycles; long-lived objects are not scanned."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Generator

from .locks import at_fork

__all__ = ["grow_old", "no_collection"]

_off_by: set[int] = set()  # threads that have turned it off
_frozen_here: list[bool] = []  # not empty: Ctrl-C came between `freeze` and `unfreeze`


def grow_old() -> None:
    """Move all objects to the collector's oldest generation without a scan, by freezing and unfreezing them. Do
    nothing if the program itself froze objects, as that would unfreeze them."""
    if _frozen_here or not gc.get_freeze_count():  # counting takes long where something is frozen
        _frozen_here.append(True)
        try:
            gc.freeze()
        finally:
            gc.unfreeze()
            _frozen_here.clear()


@contextlib.contextmanager
def no_collection() -> Generator[None]:
    """Turn the collector off: looking for cycles among a hundred thousand new nodes takes a sixth of their creation
    time."""
    was_enabled = gc.isenabled()
    try:
        if was_enabled:
            _off_by.add(threading.get_ident())
        gc.disable()
        yield
    finally:
        if was_enabled:
            try:  # Ctrl-C in here leaves it on too
                grow_old()
            finally:
                gc.enable()
                _off_by.discard(threading.get_ident())


def _enable_after_fork() -> None:
    """Turn the collector on in a forked child, where no other code does."""
    if _off_by - {threading.get_ident()}:
        gc.enable()
    _off_by.clear()


at_fork(after_in_child=_enable_after_fork)
