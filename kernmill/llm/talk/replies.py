"""Replies of a chat model, read during generation: reasoning, answer and tool calls apart.

The format of a model is read off its chat template. Calls are read by `call_formats.py`. Text that only looks like a
call is part of the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..generation import longest_overlap
from .call_formats import FORMATS, CallFormat, ToolCall
from .call_streams import CallStream

__all__ = ["HARMONY", "ReplyFormat", "ReplyPart", "ReplyReader"]

HARMONY = "<|channel|>"
_THOUGHTS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|channel>thought", "<channel|>"))


@dataclass(frozen=True, slots=True)
class ReplyPart:
    """New text of the answer or of the reasoning, or of the tool call number `index`.

    delta  what is new in a call: the first one has its id and name, each some more of its arguments.
    call   the whole call, in its last part.
    """

    content: str = ""
    reasoning: str = ""
    call: ToolCall | None = None
    index: int = 0
    delta: ToolCall | None = None


@dataclass(frozen=True)
class ReplyFormat:
    """The form of the replies of a model. `thought`: the markers around reasoning. `is_inside`: the prompt opened
    it. `splits`: reasoning is apart from the answer."""

    calls: CallFormat | None = None
    thought: tuple[str, str] | None = None
    is_inside: bool = False
    is_harmony: bool = False
    splits: bool = True

    @classmethod
    def of(cls, template: str, prompt: str = "") -> ReplyFormat:
        """Return the format of the replies to a prompt that the template rendered."""
        if HARMONY in template and "<|start|>" in template:
            return cls(is_harmony=True)
        calls = next((row for row in FORMATS if any(mark in template for mark in row.signs)), None)
        thought = next((pair for pair in _THOUGHTS if pair[0] in template), None)
        is_inside = thought is not None and prompt.rstrip().endswith(thought[0])
        return cls(calls, thought, is_inside)

    @property
    def markers(self) -> tuple[str, ...]:
        """Strings that a reader must see, also where they are control tokens."""
        if self.is_harmony:
            return ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>")
        found = () if self.thought is None else self.thought
        return found if self.calls is None else (*found, *self.calls.markers)

    @property
    def around(self) -> tuple[str, str] | None:
        """Return what is around the JSON of a call's arguments; NAME is the tool. None: calls are not JSON."""
        if self.is_harmony:
            return "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>", ""
        return None if self.calls is None else self.calls.around

    def reader(self, tools: Sequence[Mapping[str, Any]] = ()) -> ReplyReader | HarmonyReader:
        """A reader for one reply. Without tools, calls are text."""
        if self.is_harmony:
            return HarmonyReader()
        return ReplyReader(self if self.splits else replace(self, thought=None, is_inside=False), tools)


class ReplyReader:
    """Reads a reply with markers in its text."""

    def __init__(self, format: ReplyFormat, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self._format, self._tools = format, tools
        self._calls = format.calls if tools else None
        self._waiting = ""
        self._state = "reasoning" if format.is_inside else "start"
        self._count = 0
        self._strips = True  # blanks before the answer or the reasoning
        self._block: list[str] = []  # text of a call after `_waiting`
        self._end = ""  # of the text so far: the marker may be in two pieces
        self._names = frozenset(str(tool.get("function", {}).get("name")) for tool in tools)
        self._stream = CallStream(None, ())  # of the open block

    def push(self, text: str) -> Iterator[ReplyPart]:
        """Yield what is certain after more text."""
        if self._state == "call":  # it may be long: only its end is looked for
            self._block.append(text)
            if not self._has_closed(text):
                yield from self._parts_of_call(text)
                return
            text = self._whole_block()
        self._waiting += text
        while self._waiting:
            before = (self._state, len(self._waiting))
            yield from self._advance_text(is_end=False)
            if (self._state, len(self._waiting)) == before:
                return

    def finish(self) -> Iterator[ReplyPart]:
        """Yield the rest, when the reply has ended."""
        self._waiting += self._whole_block()
        while self._waiting:
            before = (self._state, len(self._waiting))
            yield from self._advance_text(is_end=True)
            if (self._state, len(self._waiting)) == before:
                break

    def _has_closed(self, text: str) -> bool:
        assert self._calls is not None
        close = self._calls.close
        if close is None:
            return False
        seen = (self._end or self._waiting[1 - len(close) :]) + text
        self._end = seen[1 - len(close) :]
        return close in seen

    def _whole_block(self) -> str:
        text = "".join(self._block)
        self._block.clear()
        self._end = ""
        return text

    def _advance_text(self, is_end: bool) -> Iterator[ReplyPart]:
        if self._state == "reasoning":
            assert self._format.thought is not None
            yield from self._until(self._format.thought[1], "content", is_end, is_reasoning=True)
        elif self._state == "call":
            yield from self._tool_block(is_end)
        else:
            yield from self._answer(is_end)

    def _until(self, mark: str, state: str, is_end: bool, *, is_reasoning: bool) -> Iterator[ReplyPart]:
        start = self._waiting.find(mark)
        if start >= 0:
            text, self._waiting = self._waiting[:start], self._waiting[start + len(mark) :]
            yield from self._parts_of(text, is_reasoning)
            self._state, self._strips = state, True
            return
        sure = len(self._waiting) - (0 if is_end else longest_overlap(self._waiting, mark))
        text, self._waiting = self._waiting[:sure], self._waiting[sure:]
        yield from self._parts_of(text, is_reasoning)

    def _answer(self, is_end: bool) -> Iterator[ReplyPart]:
        opens = [] if self._calls is None else list(self._calls.opens)
        if self._state == "start":
            yield from self._opening(is_end)
            return
        found = [(self._waiting.find(mark), mark) for mark in opens if mark in self._waiting]
        if found:
            start, _ = min(found)
            text, self._waiting = self._waiting[:start], self._waiting[start:]
            yield from self._parts_of(text.rstrip() if not text.strip() else text, False)
            self._open_call()
            return
        held = 0 if is_end else max((longest_overlap(self._waiting, mark) for mark in opens), default=0)
        sure = len(self._waiting) - held
        text, self._waiting = self._waiting[:sure], self._waiting[sure:]
        yield from self._parts_of(text, False)

    def _opening(self, is_end: bool) -> Iterator[ReplyPart]:
        """Decide what the reply begins with: reasoning, a call without a marker, or an answer."""
        stripped = self._waiting.lstrip()
        if not stripped and not is_end:
            return
        thought = self._format.thought
        if thought is not None and stripped.startswith(thought[0]):
            self._waiting, self._state = stripped[len(thought[0]) :], "reasoning"
        elif not is_end and thought is not None and thought[0].startswith(stripped):
            return
        elif self._calls is not None and self._calls.first and stripped[:1] in self._calls.first:
            self._waiting = stripped
            self._open_call()
        else:
            self._state = "content"
            self._strips = thought is not None
        yield from ()

    def _open_call(self) -> None:
        assert self._calls is not None
        self._state = "call"
        self._stream = CallStream(self._calls.head, self._names)

    def _parts_of_call(self, text: str) -> Iterator[ReplyPart]:
        for number, delta, call in self._stream.push(text):
            yield ReplyPart(call=call, index=self._count + number, delta=delta)

    def _tool_block(self, is_end: bool) -> Iterator[ReplyPart]:
        assert self._calls is not None
        text, whole = self._waiting, len(self._waiting)
        if self._calls.close is not None:
            start = text.find(self._calls.close)
            if start < 0 and not is_end:
                yield from self._parts_of_call(text[self._stream.seen :])
                return
            whole = len(text) if start < 0 else start + len(self._calls.close)
        elif not is_end:
            yield from self._parts_of_call(text[self._stream.seen :])
            return
        block, self._waiting = text[:whole], text[whole:]
        yield from self._parts_of_call(block[self._stream.seen :])
        for number, delta, call in self._stream.finish():
            yield ReplyPart(call=call, index=self._count + number, delta=delta)
        calls, begun = self._calls.read(block, self._tools), len(self._stream.calls)
        self._state = "content"
        self._strips = bool(calls or begun)
        if not self._strips:
            yield from self._parts_of(block, False)
        for number, call in enumerate(calls[begun:], begun):
            yield ReplyPart(call=call, index=self._count + number, delta=call)
        self._count += max(len(calls), begun)

    def _parts_of(self, text: str, is_reasoning: bool) -> Iterator[ReplyPart]:
        if self._strips:
            text = text.lstrip()
        if text:
            self._strips = False
            yield ReplyPart(reasoning=text) if is_reasoning else ReplyPart(content=text)


@dataclass
class HarmonyReader:
    """Reads a reply of gpt-oss: messages in channels, of which `analysis` is reasoning, `final` the answer, and one
    with a recipient a call."""

    _waiting: str = ""
    _head: str | None = ""  # of the message, None: in its body
    _body: list[str] = field(default_factory=list[str])
    _count: int = 0
    _call: ToolCall | None = None

    def push(self, text: str) -> Iterator[ReplyPart]:
        """Yield what is certain after more text."""
        self._waiting += text
        yield from self._take_messages(is_end=False)

    def finish(self) -> Iterator[ReplyPart]:
        """Yield the rest, when the reply has ended."""
        yield from self._take_messages(is_end=True)
        yield from self._ended()

    def _take_messages(self, is_end: bool) -> Iterator[ReplyPart]:
        while self._waiting:
            if self._head is not None:
                head, mark, rest = self._waiting.partition("<|message|>")
                if not mark:
                    return
                self._head, self._waiting, self._channel = None, rest, head
                continue
            ends = [(self._waiting.find(mark), mark) for mark in _ENDS if mark in self._waiting]
            if ends:
                start, mark = min(ends)
                yield from self._parts_of(self._waiting[:start])
                self._waiting = self._waiting[start + len(mark) :]
                yield from self._ended()
                continue
            held = 0 if is_end else max(longest_overlap(self._waiting, mark) for mark in _ENDS)
            sure = len(self._waiting) - held
            text, self._waiting = self._waiting[:sure], self._waiting[sure:]
            yield from self._parts_of(text)
            return

    _channel = ""

    def _recipient(self) -> str:
        _, mark, rest = self._channel.partition("to=functions.")
        return rest.split("<|")[0].split()[0] if mark and rest.split("<|")[0].split() else ""

    def _parts_of(self, text: str) -> Iterator[ReplyPart]:
        if not text:
            return
        if self._recipient():
            yield from self._arguments(text)
        elif "analysis" in self._channel:
            yield ReplyPart(reasoning=text)
        else:
            yield ReplyPart(content=text)

    def _arguments(self, text: str) -> Iterator[ReplyPart]:
        """More of the arguments of a call; those of a call without any are {}."""
        text = text if self._body else text.lstrip()
        if text:
            self._body.append(text)
            given = self._call or ToolCall.of(self._recipient(), "")
            new = ("", "") if self._call else (given.id, given.name)
            self._call = given
            yield ReplyPart(index=self._count, delta=ToolCall(*new, text))

    def _ended(self) -> Iterator[ReplyPart]:
        if self._head is None and self._recipient():
            if not self._body:
                yield from self._arguments("{}")
            assert self._call is not None
            call = ToolCall(self._call.id, self._call.name, "".join(self._body))
            yield ReplyPart(call=call, index=self._count, delta=ToolCall("", "", ""))
            self._count += 1
        self._head, self._body, self._channel, self._call = "", [], "", None


_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
