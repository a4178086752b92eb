"""The results of generation: new tokens or text one by one, the reason for the end, and token counts; stop strings."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

from kernmill.ir import SettingError
from kernmill.runtime import recorder

from .tokenizer import TextStream

__all__ = ["Completion", "Generations", "StopStrings", "Text", "TokenGeneration", "longest_overlap", "stop_strings"]


@dataclass
class Text:
    """A sequence: its tokens, the prompt first, and its maximal length.

    `finish_reason` is None while the text grows; then "stop" (the model or a stop string ended it), "length" (it has
    `max_tokens`) or "context" (the cache is full). With `keep` tokens are dropped behind that many first ones when the
    cache is full: `ids` are the others.
    """

    ids: list[int]
    prompt_tokens: int
    limit: int
    is_cut_short: bool  # the cache is full before `max_tokens`
    finish_reason: str | None = None
    keep: int | None = None
    dropped: int = 0
    source: list[int] = field(default_factory=list[int])  # what an encoder reads; then `ids` are the decoder's

    @classmethod
    def of(
        cls, ids: list[int], max_tokens: int | None, capacity: int, keep: int | None = None,
        source: Sequence[int] = (),
    ) -> Text:  # fmt: skip
        """Return a sequence with only a prompt. A cache has room for one token less than a text."""
        most = capacity + 1 if keep is None else sys.maxsize - 1
        wanted = most + 1 if max_tokens is None else len(ids) + max_tokens
        text = cls(ids, len(ids), min(most, wanted), wanted > most, keep=keep, source=[*source])
        text.end_if_full()
        return text

    @property
    def tokens(self) -> int:
        """Number of new tokens."""
        return len(self.ids) + self.dropped - self.prompt_tokens

    @property
    def left(self) -> int:
        """Number of tokens before the limit."""
        return self.limit - len(self.ids) - self.dropped

    def drop(self, start: int, count: int) -> None:
        """Drop tokens from a position on."""
        del self.ids[start : start + count]
        self.dropped += count

    def add(self, token: int, is_end: bool) -> int | None:
        """Append a token, or end the text; returns the token, None for the end."""
        if is_end:
            self.finish_reason = "stop"
            return None
        self.ids.append(token)
        recorder.tick("tokens")
        self.end_if_full()
        return token

    def end_if_full(self) -> None:
        """End a text at its maximal length."""
        if self.left <= 0:
            self.finish_reason = "context" if self.is_cut_short else "length"


class Generations(Iterator["list[int | None]"]):
    """New tokens of several prompts: each step is a list with a token for each prompt, None for ended ones."""

    def __init__(self, texts: Sequence[Text], steps: Generator[list[int | None]]) -> None:
        self.texts, self._steps = texts, steps

    def __next__(self) -> list[int | None]:
        return next(self._steps)

    def close(self) -> None:
        """Stop early."""
        self._steps.close()

    @property
    def finish_reasons(self) -> list[str | None]:
        """The reason for the end of each text: "stop", "length" or "context"; None while it grows."""
        return [text.finish_reason for text in self.texts]


class TokenGeneration(Iterator[int]):
    """New tokens of one prompt, one by one."""

    def __init__(self, steps: Generations) -> None:
        self._steps, (self._text,) = steps, steps.texts

    def __next__(self) -> int:
        (token,) = next(self._steps)
        assert token is not None
        return token

    def close(self) -> None:
        """Stop early."""
        self._steps.close()

    @property
    def finish_reason(self) -> str | None:
        """ "stop": the model ended the text, "length": `max_tokens`, "context": the cache is full; None: not ended."""
        return self._text.finish_reason

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens of the prompt."""
        return len(self._text.source) or self._text.prompt_tokens

    @property
    def tokens(self) -> int:
        """Number of new tokens so far. The token that ends a text does not count."""
        return self._text.tokens


class Completion(Iterator[str]):
    """New text of one prompt, piece by piece. The pieces may be empty."""

    def __init__(self, generation: TokenGeneration, stream: TextStream, stops: StopStrings) -> None:
        self._generation, self._stops = generation, stops
        self._pieces = self._written(stream)

    def _written(self, stream: TextStream) -> Generator[str]:
        for token in self._generation:
            yield self._stops.push(stream.push(token))
            if self._stops.found is not None:
                self._generation.close()
                return
        yield self._stops.push(stream.finish())
        yield self._stops.finish()

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """Stop early."""
        self._pieces.close()
        self._generation.close()

    @property
    def finish_reason(self) -> str | None:
        """ "stop": the model or a stop string ended the text, "length": `max_tokens`, "context": the cache is full."""
        return self._generation.finish_reason if self._stops.found is None else "stop"

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text."""
        return self._stops.found

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens of the prompt."""
        return self._generation.prompt_tokens

    @property
    def tokens(self) -> int:
        """Number of new tokens so far, including those of a stop string."""
        return self._generation.tokens


class StopStrings:
    """Strings that end a text, also across pieces: text that may begin one of them waits for the next piece."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings, self._waiting = tuple(strings), ""
        self.found: str | None = None

    def push(self, piece: str) -> str:
        """Return the text that is certain, without the stop string and what follows it."""
        if self.found is not None or not self._strings:
            return "" if self.found is not None else piece
        text = self._waiting + piece
        ends = [(text.find(string), string) for string in self._strings if string in text]
        if ends:
            start, self.found = min(ends)
            self._waiting = ""
            return text[:start]
        sure = len(text) - max(longest_overlap(text, string) for string in self._strings)
        self._waiting = text[sure:]
        return text[:sure]

    def finish(self) -> str:
        """Returns the text that waited."""
        waited, self._waiting = self._waiting, ""
        return waited


def longest_overlap(text: str, string: str) -> int:
    """Length of the longest end of `text` that begins `string`."""
    longest = min(len(text), len(string) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(string[:n])), 0)


def stop_strings(given: object, call: str) -> StopStrings:
    """Check stop strings: None, one, or several.

    Raises:
        SettingError: a value that is not a string, or an empty string.
    """
    strings: object = () if given is None else (given,) if isinstance(given, str) else given
    if not isinstance(strings, (list, tuple)) or not all(isinstance(one, str) and one for one in strings):
        raise SettingError(f"{call}: stop={given!r}: must be a string or a list of strings, none of them empty.")
    return StopStrings(strings)
