"""When Python looks for garbage: not while many nodes are made, which hold no cycles, nor through what stays."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Generator

from .locks import at_fork

__all__ = ["grow_old", "no_collection"]

_off_by: set[int] = set()  # threads that have turned it off


def grow_old() -> None:
    """Every object there is moves to the collector's oldest generation without being searched, by freezing and
    unfreezing it; where the program itself froze objects nothing is done, as that would thaw them."""
    if not gc.get_freeze_count():
        try:
            gc.freeze()
        finally:
            gc.unfreeze()


@contextlib.contextmanager
def no_collection() -> Generator[None]:
    """To look for cycles among a hundred thousand new nodes takes a sixth of the time of making them."""
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


def _after_fork() -> None:
    """In a child, in which nobody turns it on again."""
    if _off_by - {threading.get_ident()}:
        gc.enable()
    _off_by.clear()


at_fork(after_in_child=_after_fork)
