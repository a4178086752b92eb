"""Pieces of generations on an event loop: the engine's thread delivers them, coroutines wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any
from weakref import WeakKeyDictionary

from ..engine import Piece

__all__ = ["Feed", "PieceQueue"]

Item = tuple[int, Piece | None]  # of which generation; None: it has ended


class _Outbox:
    """Pieces from one thread for coroutines of one loop. The loop is woken once for all that is there."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._items, self._is_woken = loop, deque[tuple[PieceQueue, Item]](), False

    def post(self, queue: PieceQueue, item: Item) -> None:
        self._items.append((queue, item))
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_woken = False
        while self._items:
            queue, item = self._items.popleft()
            queue.put(item)


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


class PieceQueue:
    """Pieces of some generations in the order of their arrival. Make it, and wait for it, in a coroutine."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._outbox = _outboxes.setdefault(loop, _Outbox(loop))
        self._loop = loop
        self._items: list[Any] = []
        self._waiter: asyncio.Future[None] | None = None

    def listen(self, feed: Feed, index: int = 0) -> None:
        """Receive the pieces of a generation, those that are there and all that follow."""
        feed.listen(lambda piece: self._outbox.post(self, (index, piece)))

    def put(self, item: Any) -> None:
        """Add an item; call it in the loop."""
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> list[Any]:
        """Return all items that are there, at least one."""
        while not self._items:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        found, self._items = self._items, []
        return found
