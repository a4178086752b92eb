"""The arguments of tool calls while a model writes them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from .call_formats import ToolCall

__all__ = ["CallStream"]

_LONGEST_HEAD = 512  # characters of a call before its arguments; what is longer is read at its end
_OUTSIDE, _IN_STRING = re.compile(r'["{}\[\]]'), re.compile(r'["\\]')


class CallStream:
    """Reads calls whose arguments are JSON, piece by piece.

    `head` matches what is before the arguments, with groups `name` and `id`; None: nothing is read. Only calls of
    `names` are read: anything else may turn out to be text. `calls` has those that were begun, as far as they were
    written, and `seen` is the number of characters that were pushed.
    """

    def __init__(self, head: re.Pattern[str] | None, names: Collection[str]) -> None:
        self._head, self._names = head, names
        self._before = ""  # text that may be the front of a head
        self._pieces: list[str] = []  # arguments of the open call
        self._open: ToolCall | None = None
        self._depth, self._is_string, self._is_escaped = 0, False, False
        self.calls: list[ToolCall] = []
        self.seen = 0

    def push(self, text: str) -> Iterator[tuple[int, ToolCall, ToolCall | None]]:
        """Yield what is new in a call: its number, its id and name if it begins, with new arguments; and the whole
        call if it ends."""
        self.seen += len(text)
        while text:
            if self._open is None:
                self._before += text
                found = self._begin()
                if found is None:
                    return
                text = found
                yield len(self.calls), ToolCall(self._call.id, self._call.name, ""), None
            size = self._size_of_value(text)
            piece, text = text[:size], text[size:]
            self._pieces.append(piece)
            yield len(self.calls), ToolCall("", "", piece), self._closed_call() if self._depth == 0 else None

    def finish(self) -> Iterator[tuple[int, ToolCall, ToolCall | None]]:
        """Yield the end of a call that is cut off."""
        if self._open is not None:
            yield len(self.calls), ToolCall("", "", ""), self._closed_call()

    @property
    def _call(self) -> ToolCall:
        assert self._open is not None
        return self._open

    def _begin(self) -> str | None:
        """Open a call if its head is complete, and return the text behind it."""
        found = None if self._head is None else self._head.match(self._before)
        if found is None:
            if len(self._before) > _LONGEST_HEAD:
                self._head, self._before = None, ""
            return None
        groups = found.groupdict()
        if groups["name"] not in self._names:
            self._head, self._before = None, ""
            return None
        self._open = ToolCall.of(groups["name"], "", groups.get("id") or "")
        rest, self._before = self._before[found.end() :], ""
        return rest

    def _closed_call(self) -> ToolCall:
        call = ToolCall(self._call.id, self._call.name, "".join(self._pieces))
        self.calls.append(call)
        self._open = None
        self._pieces.clear()
        self._depth, self._is_string, self._is_escaped = 0, False, False
        return call

    def _size_of_value(self, text: str) -> int:
        """The number of characters that belong to the arguments, which end where all brackets are closed."""
        position = 0
        while position < len(text):
            if self._is_escaped:
                self._is_escaped = False
                position += 1
                continue
            found = (_IN_STRING if self._is_string else _OUTSIDE).search(text, position)
            if found is None:
                break
            sign, position = found[0], found.end()
            if sign == '"':
                self._is_string = not self._is_string
            elif sign == "\\":
                self._is_escaped = True
            else:
                self._depth += 1 if sign in "{[" else -1
                if self._depth == 0:
                    return position
        return len(text)
