"""class Reply: what a model answers, part by part and as a whole, for threads and for coroutines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kernmill.ir import KernmillError

from ..engine import Generation, Piece, TokenLogprob, Usage
from ..generation import StopStrings
from ..sampling import SamplingOptions
from ..tokenizer import Tokenizer
from .call_formats import ToolCall
from .pieces import Feed, PieceQueue
from .replies import ReplyFormat, ReplyPart

__all__ = ["Prompt", "Reply", "TextOptions", "TokenReader"]


@dataclass(frozen=True)
class TextOptions:
    """How a text is generated.

    sampling    the choice of tokens.
    max_tokens  None: until the model ends the text, or the context is full.
    stop        strings that end the text.
    logprobs    the number of alternatives of each token with their log probabilities; None: no log probabilities
    keep        tokens that stay when a full context is shifted, as of GenerationRequest; None: it ends the text
    """

    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    keep: int | None = None


@dataclass(frozen=True)
class Prompt:
    """A prompt, ready for the model: its tokens, the format of the reply, and a grammar that the reply follows."""

    tokens: Sequence[int]
    format: ReplyFormat | None = None  # None: the reply is only text
    tools: Sequence[Mapping[str, Any]] = ()
    grammar: Any = None


class TokenReader:
    """Reads the tokens of a reply with a format: its parts, up to a stop string in the answer."""

    def __init__(self, prompt: Prompt, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        assert prompt.format is not None
        self._reader = prompt.format.reader(prompt.tools)
        self._markers = frozenset(prompt.format.markers)
        self._tokenizer, self._stream = tokenizer, tokenizer.stream(show_special=True)
        self._stops = StopStrings(stop)

    @property
    def found(self) -> str | None:
        """The stop string that ended the answer."""
        return self._stops.found

    def push(self, tokens: Sequence[int]) -> list[ReplyPart]:
        """Return the parts that tokens complete."""
        text = "".join(map(self._text_of, tokens))
        return self._until_stop(self._reader.push(text)) if text else []

    def watch(self, token: int) -> str | None:
        """Read a token, and return the stop string that it completes."""
        self.push([token])
        return self.found

    def finish(self) -> list[ReplyPart]:
        """Return the rest, when the reply has ended."""
        if self.found is not None:
            return []
        rest = self._stream.finish()
        parts = self._until_stop([*self._reader.push(rest), *self._reader.finish()])
        waited = self._stops.finish()
        return [*parts, ReplyPart(content=waited)] if waited else parts

    def _text_of(self, token: int) -> str:
        if self._tokenizer.is_control(token) and self._tokenizer.tokens[token] not in self._markers:
            return ""
        return self._stream.push(token)

    def _until_stop(self, parts: Iterable[ReplyPart]) -> list[ReplyPart]:
        """Stop strings end the answer, not the reasoning."""
        found: list[ReplyPart] = []
        for part in parts:
            if not part.content:
                found.append(part)
                continue
            text = self._stops.push(part.content)
            if text:
                found.append(ReplyPart(content=text))
            if self._stops.found is not None:
                break
        return found


class Reply(Iterator[ReplyPart]):
    """A reply. Iterate over its parts while it is generated, or take `text` after `wait`.

    text, reasoning, tool_calls   what has arrived so far
    logprobs                      the log probabilities of the tokens, if requested
    finish_reason                 "stop", "length", "tool_calls" or "cancelled"; None: not ended
    """

    def __init__(
        self, generation: Generation, feed: Feed, prompt: Prompt, tokenizer: Tokenizer, options: TextOptions
    ) -> None:
        self.generation, self.feed, self.prompt = generation, feed, prompt
        self._reader = None if prompt.format is None else TokenReader(prompt, tokenizer, options.stop)
        self._top = options.logprobs
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._parts: list[ReplyPart] = []
        self.tool_calls: list[ToolCall] = []
        self.logprobs: list[TokenLogprob] = []
        self._has_ended = False

    # --- pieces to parts
    def take(self, piece: Piece | None) -> list[ReplyPart]:
        """Return the parts that a piece of the engine completes; None: the end."""
        if piece is None:
            return self._end()
        if self._has_ended:
            return []
        self.logprobs += self.logprobs_of(piece)
        if self._reader is None:
            return self._kept([ReplyPart(content=piece.text)] if piece.text else [])
        return self._kept(self._reader.push(piece.tokens))

    def logprobs_of(self, piece: Piece) -> tuple[TokenLogprob, ...]:
        """The log probabilities of a piece, with as many alternatives as requested."""
        if self._top or not piece.logprobs:
            return piece.logprobs
        return tuple(replace(one, top=()) for one in piece.logprobs)

    def _end(self) -> list[ReplyPart]:
        if self._has_ended:
            return []
        parts = [] if self._reader is None else self._reader.finish()
        self._has_ended = True
        return self._kept(parts)

    def _kept(self, parts: list[ReplyPart]) -> list[ReplyPart]:
        for part in parts:
            if part.content:
                self._texts.append(part.content)
            if part.reasoning:
                self._thoughts.append(part.reasoning)
            if part.call is not None:
                self.tool_calls.append(part.call)
        return parts

    # --- for threads
    def __next__(self) -> ReplyPart:
        while not self._parts:
            if self._has_ended:
                raise StopIteration
            self._parts = self.take(self.feed.get())
            if self._has_ended:
                self.check()
        return self._parts.pop(0)

    def wait(self) -> Reply:
        """Wait for the end; returns itself."""
        for _ in self:
            pass
        return self

    # --- for coroutines
    async def __aiter__(self) -> AsyncIterator[ReplyPart]:
        queue = PieceQueue(self.feed)
        try:
            while not self._has_ended:
                for _, piece in await queue.next():
                    for part in self.take(piece):
                        yield part
            self.check()
        finally:
            self.cancel()

    async def wait_async(self) -> Reply:
        """Wait for the end in a coroutine; returns itself."""
        async for _ in self:
            pass
        return self

    def check(self) -> None:
        """Raise the error that ended the reply."""
        if self.generation.finish_reason == "error":
            raise self.generation.error or KernmillError("LLM: the engine failed.")

    # --- results
    def cancel(self) -> None:
        """End the reply within a step."""
        if not self._has_ended:
            self.generation.cancel()

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self._texts)

    @property
    def reasoning(self) -> str:
        """The reasoning so far."""
        return "".join(self._thoughts)

    @property
    def finish_reason(self) -> str | None:
        """Why the reply ended; None: it has not."""
        if not self._has_ended:
            return None
        reason = self.generation.finish_reason
        return "tool_calls" if self.tool_calls and reason == "stop" else reason

    @property
    def usage(self) -> Usage:
        """Numbers of tokens so far."""
        return self.generation.usage

    def __str__(self) -> str:
        return self.text

    def __enter__(self) -> Reply:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
