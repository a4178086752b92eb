"""The replies of one request, whole or as server-sent events, until they end or the client goes away.

Pieces are written by the call that brings them: no coroutine runs for each token, which costs more than the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

import msgspec

from ..llm.engine import Piece
from ..llm.talk import Item, Reply, ReplyPart, listen
from .errors import RequestError
from .limits import ServerOptions
from .metrics import Metrics
from .protection import BODY, Receive, Scope, Send
from .shapes import Shape, event

__all__ = ["Job", "JsonAnswer", "StreamAnswer"]

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


class _Begun:
    """The rest of an awaitable that has been begun, and waits for something."""

    def __init__(self, steps: Generator[Any, Any, None], waited: Any) -> None:
        self._steps, self._waited = steps, waited

    def __await__(self) -> Generator[Any, Any, None]:
        yield self._waited
        yield from self._steps


class Stream:
    """A body in parts. A part is written at once; while the client does not read, parts wait.

    sent_s  when the last part was given to the connection, on the clock of time.perf_counter.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._parts: list[bytes] = []
        self._task: asyncio.Task[None] | None = None
        self.sent_s = time.perf_counter()

    @property
    def is_waiting(self) -> bool:
        """True while the client does not read."""
        return self._task is not None

    def put(self, data: bytes) -> None:
        """Add a part; call it in the loop."""
        if self._task is not None:
            self._parts.append(data)
            return
        steps = self._sending(data, more=True).__await__()
        try:
            waited = next(steps)
        except StopIteration:
            return
        self._task = asyncio.get_running_loop().create_task(self._rest(_Begun(steps, waited)))

    async def _rest(self, begun: _Begun) -> None:
        await begun
        while self._parts:
            data, self._parts = b"".join(self._parts), []
            await self._sending(data, more=True)
        self._task = None

    async def _sending(self, data: bytes, *, more: bool) -> None:
        self.sent_s = time.perf_counter()
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def end(self, data: bytes) -> None:
        """Add the last part, after those that wait."""
        if self._task is not None:
            await self._task
        await self._sending(data, more=False)

    def close(self) -> None:
        """Send no more."""
        if self._task is not None:
            self._task.cancel()


class Job:
    """The replies of a request. `model` is held while they are generated."""

    def __init__(
        self, replies: Sequence[Reply], options: ServerOptions, metrics: Metrics, model: AbstractContextManager[Any]
    ) -> None:
        self.replies, self.options, self._metrics, self._model = replies, options, metrics, model
        self._start = time.perf_counter()
        self._left = len(replies)
        self._take: Callable[[list[Parts]], None] | None = None
        self._body: Stream | None = None
        self._timer: asyncio.TimerHandle | None = None
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = loop.create_future()

    async def run(
        self, receive: Receive, take: Callable[[list[Parts]], None] | None = None, body: Stream | None = None
    ) -> None:
        """Wait until the replies have ended. `take` gets their parts as they arrive, in the loop, to write into `body`.

        Raises:
            ConnectionResetError: the client has gone. RequestError: the engine failed.
        """
        loop = asyncio.get_running_loop()
        self._take, self._body = take, body
        task = asyncio.current_task()
        assert task is not None
        watch = loop.create_task(self._watch(receive))
        self._check_times(loop, task)
        self._model.__enter__()
        self._metrics.running += 1
        try:
            for index, reply in enumerate(self.replies):
                listen(reply.feed, self, index)
            await self._ended
        finally:
            if self._timer is not None:
                self._timer.cancel()
            watch.cancel()
            for reply in self.replies:
                reply.cancel()
            self._metrics.running -= 1
            self._metrics.count_job(self)
            self._model.__exit__(None, None, None)

    def arrived(self, items: list[Item], /) -> None:
        """Take pieces of the replies."""
        if self._ended.done():
            return
        try:
            found = [self._parts_of(*item) for item in items]
            if self._take is not None:
                self._take(found)
            if not self._left:
                self._ended.set_result(None)
        except Exception as error:  # of this request: the others go on
            self._ended.set_exception(error)

    def _parts_of(self, index: int, piece: Piece | None) -> Parts:
        reply = self.replies[index]
        parts = reply.take(piece)
        if piece is not None:
            return index, parts, reply.logprobs_of(piece), False
        self._left -= 1
        self._check(reply)
        return index, parts, (), True

    async def _watch(self, receive: Receive) -> None:
        with suppress(Exception):
            while (await receive())["type"] != "http.disconnect":
                pass
        if not self._ended.done():
            self._ended.set_exception(ConnectionResetError())

    def _check_times(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        """At the next moment that matters: long silence, a client that does not read, the limit of time."""
        now, body, options = time.perf_counter(), self._body, self.options
        moments: list[float] = []
        if options.timeout_s and now < self._start + options.timeout_s:
            moments.append(self._start + options.timeout_s)
        elif options.timeout_s:
            for reply in self.replies:
                reply.cancel()
        if body is not None and body.is_waiting:
            if now >= body.sent_s + options.stall_s:
                task.cancel()
                return
            moments.append(body.sent_s + options.stall_s)
        elif body is not None:
            if now >= body.sent_s + options.ping_s:
                body.put(b": \n\n")
            moments += [body.sent_s + options.ping_s, now + options.stall_s]
        if moments:
            self._timer = loop.call_later(min(moments) - now, self._check_times, loop, task)

    @staticmethod
    def _check(reply: Reply) -> None:
        try:
            reply.check()
        except Exception as error:
            raise RequestError(500, f"The model failed: {error}") from error

    @property
    def first_token_s(self) -> float | None:
        """Seconds until the first token."""
        found = [reply.generation.first_s for reply in self.replies if reply.generation.first_s is not None]
        return min(found) - self._start if found else None

    def timings(self) -> dict[str, Any]:
        """Times and speeds as llama-server names them. The first token is made with the prompt: the others have a
        speed."""
        counts = [reply.usage for reply in self.replies]
        cached = sum(count.cached_tokens for count in counts)
        prompt = sum(count.prompt_tokens for count in counts) - cached
        made = sum(count.completion_tokens for count in counts)
        lasts = [reply.generation.last_s for reply in self.replies if reply.generation.last_s is not None]
        first = self.first_token_s
        prompt_ms = (time.perf_counter() - self._start if first is None else first) * 1e3
        made_ms = 0.0 if first is None else (max(lasts) - self._start - first) * 1e3
        return {
            "cache_n": cached, "prompt_n": prompt, **_speed("prompt", prompt, prompt_ms),
            "predicted_n": made, **_speed("predicted", made - len(lasts), made_ms),
        }  # fmt: skip

    async def whole(self, receive: Receive, body: Callable[[Sequence[Reply], dict[str, Any]], Any]) -> JsonAnswer:
        """Wait for the replies, and return the body.

        Raises:
            ConnectionResetError: the client has gone.
        """
        await self.run(receive)
        return JsonAnswer(body(self.replies, {"timings": self.timings()}))


def _speed(name: str, count: int, ms: float) -> dict[str, float]:
    """The time of tokens, of one of them, and how many a second makes; 0 without tokens."""
    return {
        f"{name}_ms": round(ms, 3), f"{name}_per_token_ms": round(ms / count, 3) if count > 0 else 0.0,
        f"{name}_per_second": round(count / ms * 1e3, 3) if count > 0 and ms > 0 else 0.0,
    }  # fmt: skip


class StreamAnswer:
    """The replies of a job as server-sent events."""

    def __init__(self, job: Job, shape: Shape) -> None:
        self._job, self._shape = job, shape
        self._pending: dict[int, list[Any]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]  # fmt: skip
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        job, shape, body = self._job, self._shape, Stream(scope[BODY])

        def take(found: list[Parts]) -> None:
            if data := self._events(found):
                body.put(data)

        try:
            body.put(b"".join(map(shape.begin, range(len(job.replies)))) or b": \n\n")
            try:
                await job.run(receive, take, body)
                data = shape.finish(job.replies)
            except RequestError as error:
                data = event(error.content())
            await body.end(data)
        except OSError:  # the client has gone
            return
        finally:
            body.close()

    def _events(self, found: list[Parts]) -> bytes:
        made: list[bytes] = []
        shape, pending = self._shape, self._pending
        for index, parts, logprobs, has_ended in found:
            if logprobs:
                pending.setdefault(index, []).extend(logprobs)
            for part in parts:
                made.append(shape.part(index, part, pending.pop(index, ())))
            if has_ended:
                if rest := pending.pop(index, ()):
                    made.append(shape.part(index, ReplyPart(), rest))
                made.append(shape.end(index, self._job.replies[index], {"timings": self._job.timings()}))
        return b"".join(made)
