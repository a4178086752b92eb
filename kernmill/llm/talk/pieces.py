"""Pieces of generations on an event loop: the engine's thread delivers them, listeners and coroutines get them."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Protocol
from weakref import WeakKeyDictionary

from ..engine import Piece

__all__ = ["Feed", "Item", "Listener", "PieceQueue", "listen"]

Item = tuple[int, Piece | None]  # of which generation; None: it has ended


class Listener(Protocol):
    """Receives pieces in its loop."""

    def arrived(self, items: list[Item], /) -> None:
        """Take all pieces that are there, at least one; it returns at once."""
        ...


class _Outbox:
    """Pieces from one thread for listeners of one loop. The loop is woken once for all that is there, and each listener
    is called once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._items, self._is_woken = loop, deque[tuple[Listener, Item]](), False

    def post(self, listener: Listener, item: Item) -> None:
        self._items.append((listener, item))
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_woken = False
        found: dict[Listener, list[Item]] = {}
        while self._items:
            listener, item = self._items.popleft()
            found.setdefault(listener, []).append(item)
        for listener, items in found.items():
            listener.arrived(items)


_outboxes: WeakKeyDictionary[asyncio.AbstractEventLoop, _Outbox] = WeakKeyDictionary()


class Feed:
    """The pieces of one generation as the engine gives them; they wait for a thread or for a listener."""

    def __init__(self) -> None:
        self._pieces: SimpleQueue[Piece | None] = SimpleQueue()
        self._listener: Callable[[Piece | None], None] | None = None
        self._lock = threading.Lock()

    def __call__(self, piece: Piece | None) -> None:
        """Take a piece: for the engine."""
        with self._lock:
            if self._listener is None:
                self._pieces.put(piece)
            else:
                self._listener(piece)

    def listen(self, listener: Callable[[Piece | None], None]) -> None:
        """Pass all pieces on to a function, which returns at once."""
        with self._lock:
            while not self._pieces.empty():
                listener(self._pieces.get())
            self._listener = listener

    def get(self) -> Piece | None:
        """Wait for the next piece; None: the end."""
        return self._pieces.get()


def listen(feed: Feed, listener: Listener, index: int = 0) -> None:
    """Pass the pieces of a generation on, those that are there and all that follow. Call it in the listener's loop."""
    loop = asyncio.get_running_loop()
    outbox = _outboxes.setdefault(loop, _Outbox(loop))
    feed.listen(lambda piece: outbox.post(listener, (index, piece)))


class PieceQueue:
    """The pieces of a generation in the order of their arrival. Make it, and wait for it, in a coroutine."""

    def __init__(self, feed: Feed) -> None:
        self._items: list[Item] = []
        self._waiter: asyncio.Future[None] | None = None
        listen(feed, self)

    def arrived(self, items: list[Item], /) -> None:
        """Keep them until a coroutine asks for them."""
        self._items += items
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> list[Item]:
        """Return all pieces that are there, at least one."""
        while not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        found, self._items = self._items, []
        return found
