"""The replies of one request, whole or as server-sent events, until they end or the client goes away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

import msgspec

from ..llm.talk import PieceQueue, Reply, ReplyPart
from .errors import RequestError
from .limits import ServerOptions
from .metrics import Metrics
from .protection import Receive, Scope, Send
from .shapes import Shape, event

__all__ = ["Job", "JsonAnswer", "StreamAnswer"]

_GONE, _PING = object(), object()
_TICK_S = 1.0
Parts = tuple[int, list[ReplyPart], Sequence[Any], bool]  # of a reply; True: it has ended


class JsonAnswer:
    """A body of JSON."""

    def __init__(self, value: Any, status: int = 200) -> None:
        self._body, self._status = msgspec.json.encode(value), status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(self._body)).encode())]
        await send({"type": "http.response.start", "status": self._status, "headers": headers})
        await send({"type": "http.response.body", "body": self._body})


class Job:
    """The replies of a request. `model` is held while they are generated."""

    def __init__(
        self, replies: Sequence[Reply], options: ServerOptions, metrics: Metrics, model: AbstractContextManager[Any]
    ) -> None:
        self.replies, self.options, self._metrics, self._model = replies, options, metrics, model
        self._queue = PieceQueue()
        self._start = self._sent = time.perf_counter()
        self._first: float | None = None
        self._last = self._start
        self._sending: float | None = None
        self._task: asyncio.Task[Any] | None = None
        for index, reply in enumerate(replies):
            self._queue.listen(reply.feed, index)

    async def parts(self, receive: Receive) -> AsyncIterator[list[Parts] | None]:
        """Yield the parts of pieces as they arrive; None: nothing has arrived for some time.

        Raises:
            ConnectionResetError: the client has gone. RequestError: the engine failed.
        """
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        watch = loop.create_task(self._watch(receive))
        timer = loop.call_later(_TICK_S, self._tick, loop)
        left = len(self.replies)
        self._model.__enter__()
        self._metrics.running += 1
        try:
            while left:
                items = await self._queue.next()
                found: list[Parts] = []
                for item in items:
                    if item is _GONE:
                        raise ConnectionResetError
                    if item is _PING:
                        continue
                    index, piece = item
                    reply = self.replies[index]
                    parts = reply.take(piece)
                    self._note(piece)
                    left -= piece is None
                    found.append((index, parts, () if piece is None else reply.logprobs_of(piece), piece is None))
                    if piece is None:
                        self._check(reply)
                yield found or None
        finally:
            self._timer.cancel() if self._timer else timer.cancel()
            watch.cancel()
            for reply in self.replies:
                reply.cancel()
            self._metrics.running -= 1
            self._metrics.count_job(self)
            self._model.__exit__(None, None, None)

    _timer: asyncio.TimerHandle | None = None

    async def _watch(self, receive: Receive) -> None:
        with suppress(Exception):
            while (await receive())["type"] != "http.disconnect":
                pass
        self._queue.put(_GONE)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        """Once a second: long silence, a client that does not read, the limit of time."""
        now = time.perf_counter()
        options = self.options
        if self._sending is not None and now - self._sending > options.stall_s and self._task is not None:
            self._task.cancel()
            return
        if self._sending is None and now - self._sent > options.ping_s:
            self._queue.put(_PING)
        if options.timeout_s and now - self._start > options.timeout_s:
            for reply in self.replies:
                reply.cancel()
        self._timer = loop.call_later(_TICK_S, self._tick, loop)

    def _note(self, piece: Any) -> None:
        if piece is not None and piece.tokens:
            self._last = time.perf_counter()
            if self._first is None:
                self._first = self._last

    @staticmethod
    def _check(reply: Reply) -> None:
        try:
            reply.check()
        except Exception as error:
            raise RequestError(500, f"The model failed: {error}") from error

    async def sent(self, send: Send, data: bytes) -> None:
        """Send a part of a body; the time that this takes is watched."""
        self._sending = self._sent = time.perf_counter()
        await send({"type": "http.response.body", "body": data, "more_body": True})
        self._sending = None

    @property
    def first_token_s(self) -> float | None:
        """Seconds until the first token."""
        return None if self._first is None else self._first - self._start

    def timings(self) -> dict[str, Any]:
        """Times and speeds as llama-server names them."""
        counts = [reply.usage for reply in self.replies]
        cached = sum(count.cached_tokens for count in counts)
        prompt = sum(count.prompt_tokens for count in counts) - cached
        made = sum(count.completion_tokens for count in counts)
        first = self._last if self._first is None else self._first
        prompt_ms, made_ms = (first - self._start) * 1e3, (self._last - first) * 1e3
        return {
            "cache_n": cached, "prompt_n": prompt, "prompt_ms": round(prompt_ms, 3),
            "prompt_per_second": round(prompt / prompt_ms * 1e3, 3) if prompt_ms > 0 else 0.0,
            "predicted_n": made, "predicted_ms": round(made_ms, 3),
            "predicted_per_second": round((made - 1) / made_ms * 1e3, 3) if made_ms > 0 else 0.0,
        }  # fmt: skip

    async def whole(self, receive: Receive, body: Callable[[Sequence[Reply], dict[str, Any]], Any]) -> JsonAnswer:
        """Wait for the replies, and return the body.

        Raises:
            ConnectionResetError: the client has gone.
        """
        async for _ in self.parts(receive):
            pass
        return JsonAnswer(body(self.replies, {"timings": self.timings()}))


class StreamAnswer:
    """The replies of a job as server-sent events."""

    def __init__(self, job: Job, shape: Shape) -> None:
        self._job, self._shape = job, shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]  # fmt: skip
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        job, shape = self._job, self._shape
        try:
            await job.sent(send, b"".join(map(shape.begin, range(len(job.replies)))) or b": \n\n")
            async for found in job.parts(receive):
                await job.sent(send, b": \n\n" if found is None else self._events(found))
            data = shape.finish(job.replies)
        except RequestError as error:
            data = event(error.content())
        except (ConnectionResetError, OSError):
            return
        await send({"type": "http.response.body", "body": data})

    _pending: dict[int, list[Any]] | None = None

    def _events(self, found: list[Parts]) -> bytes:
        made: list[bytes] = []
        shape = self._shape
        self._pending = self._pending or {}
        for index, parts, logprobs, has_ended in found:
            reply = self._job.replies[index]
            if logprobs:
                self._pending.setdefault(index, []).extend(logprobs)
            for part in parts:
                made.append(shape.part(index, part, self._pending.pop(index, ())))
            if has_ended:
                if rest := self._pending.pop(index, ()):
                    made.append(shape.part(index, ReplyPart(), rest))
                made.append(shape.end(index, reply, {"timings": self._job.timings()}))
        return b"".join(made) or b": \n\n"
