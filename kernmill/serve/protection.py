"""Checks before a request is read: host, key, type of the body, its size. Plain ASGI around the application."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import msgspec

from .errors import RequestError
from .limits import ServerOptions

__all__ = ["BODY", "Protection", "answer_error", "read_body"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY = "kernmill.body"  # of a scope: sends parts of a body
PUBLIC = frozenset(("/", "/index.html", "/health", "/v1/health", "/favicon.ico"))
_SAFE = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Protection:
    """Lets requests pass that may reach the application."""

    def __init__(self, app: App, options: ServerOptions) -> None:
        self._app, self._options = app, options
        self._keys = [key.encode() for key in options.api_keys]
        names = {"localhost", "127.0.0.1", "[::1]", options.host.lower()}
        # by address anybody may call a server that is bound to one; it has a key then
        self._hosts = frozenset(names) if options.is_loopback else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        origin = headers.get(b"origin", b"").decode("latin-1")
        added = [*_SAFE, *self._cors(origin)]

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        scope[BODY] = send  # parts of a body have no header: they need none of the layers
        try:
            if scope["method"] == "OPTIONS" and self._cors(origin):
                await _empty(sending, 204)
                return
            self._check(scope, headers)
        except RequestError as error:
            await answer_error(sending, error)
            return
        await self._app(scope, receive, sending)

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        if self._hosts is not None:
            host = headers.get(b"host", b"").decode("latin-1").lower()
            name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
            if name not in self._hosts:
                raise RequestError(421, "The Host header names another server.", code="wrong_host")
        path = scope["path"].removeprefix(self._options.api_prefix) or "/"
        if self._keys and path not in PUBLIC and not self._has_key(headers):
            raise RequestError(
                401, "The API key is missing or not valid. Send it as Authorization: Bearer KEY.",
                code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"},
            )  # fmt: skip
        if scope["method"] == "POST":
            kind = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise RequestError(415, "Content-Type must be application/json.", code="unsupported_media_type")
            length = headers.get(b"content-length", b"0")
            if length.isdigit() and int(length[:18]) > self._options.body_bytes:
                raise _too_long(self._options)

    def _has_key(self, headers: dict[bytes, bytes]) -> bool:
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        given = key.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"").strip()
        found = [hmac.compare_digest(given, one) for one in self._keys]  # all of them: time says nothing
        return any(found)

    def _cors(self, origin: str) -> Iterable[tuple[bytes, bytes]]:
        allowed = self._options.cors_origins
        if not origin or not (origin in allowed or "*" in allowed):
            return []
        return [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
            (b"access-control-allow-headers", b"authorization, content-type, x-api-key"),
            (b"vary", b"origin"),
        ]


def _too_long(options: ServerOptions) -> RequestError:
    return RequestError(413, f"The body has more than {options.body_bytes} bytes.", code="request_too_large")


async def read_body(receive: Receive, options: ServerOptions) -> bytes:
    """Return the body of a request.

    Raises:
        RequestError: it is too long. ConnectionResetError: the client has gone.
    """
    parts: list[bytes] = []
    length = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError
        part = message.get("body", b"")
        length += len(part)
        if length > options.body_bytes:
            raise _too_long(options)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def answer_error(send: Send, error: RequestError) -> None:
    """Send an error object."""
    headers = [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    body = msgspec.json.encode(error.content())
    headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _empty(send: Send, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})
