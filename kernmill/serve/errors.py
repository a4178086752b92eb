"""Errors of the server as OpenAI's error object: {"error": {message, type, param, code}} with a status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["RequestError", "invalid", "unsupported"]

_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    405: "invalid_request_error", 408: "timeout_error", 413: "invalid_request_error", 415: "invalid_request_error",
    421: "invalid_request_error", 429: "rate_limit_error", 503: "unavailable_error",
}  # fmt: skip


class RequestError(Exception):
    """An error that a client gets: a status and a message; `param` is the field at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    def content(self) -> dict[str, Any]:
        """The body of the response."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def invalid(param: str, message: str, code: str | None = "invalid_value") -> RequestError:
    """An error about the value of a field."""
    return RequestError(400, f"{param}: {message}", param=param, code=code)


def unsupported(param: str, message: str = "is not supported by this server.") -> RequestError:
    """An error about a field that would change the answer, and is not supported."""
    return RequestError(400, f"{param} {message}", param=param, code="unsupported_parameter")
