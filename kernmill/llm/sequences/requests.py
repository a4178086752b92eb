"""GenerationRequest, the input of an engine, and its results: Generation and Piece."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from kernmill.ir import KernmillError, SettingError

from ...arguments import is_whole
from ..masks import MaskSource
from ..sampling import SamplingOptions

__all__ = ["Generation", "GenerationRequest", "Piece", "QueueFull", "SlotBusy", "TokenLogprob", "Usage"]

MOST_LOGPROBS = 1000


class QueueFull(KernmillError):
    """More requests wait than the engine takes."""


class SlotBusy(KernmillError):
    """A slot has a text that is being generated."""


@dataclass(frozen=True)
class GenerationRequest:
    """A prompt, and how to continue it.

    tokens      token ids of the prompt, at least one.
    sampling    how tokens are chosen; the default is greedy.
    max_tokens  most new tokens; None: until the text ends or the context is full.
    stop        strings that end the text, and are not part of it.
    logprobs    0: none; n: the log probability of each new token, and of the n most probable ones.
    grammar     the tokens that are allowed.
    keep        with a number, a full context does not end the text: half of the tokens behind that many first ones are
                dropped; -1: behind the prompt. See kernmill/llm/context_shift.py.
    watcher     makes for the text a function that gets each token, and returns the stop string that ends the text.

    Raises:
        SettingError: a value outside its range.
    """

    tokens: Sequence[int]
    sampling: SamplingOptions = field(default_factory=lambda: SamplingOptions(temperature=0))
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int = 0
    grammar: MaskSource | None = None
    watcher: Callable[[], Callable[[int], str | None]] | None = None
    keep: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None and not is_whole(self.max_tokens, 0):
            raise SettingError(f"GenerationRequest: max_tokens={self.max_tokens!r}: must be an integer >= 0, or None.")
        if not is_whole(self.logprobs, 0) or self.logprobs > MOST_LOGPROBS:
            raise SettingError(
                f"GenerationRequest: logprobs={self.logprobs!r}: must be an integer from 0 to {MOST_LOGPROBS}."
            )
        if not isinstance(self.sampling, SamplingOptions):
            raise SettingError(f"GenerationRequest: sampling={self.sampling!r}. Give SamplingOptions(..).")
        if self.grammar is not None and not hasattr(self.grammar, "start"):
            raise SettingError(f"GenerationRequest: grammar={self.grammar!r}: it has no start(). Give a Grammar.")


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The natural logarithm of the probability of a token, by the model alone; `top`: of the most probable tokens."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a text. Text that may begin a stop string, or half a character, comes with a later piece."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Numbers of tokens: of the prompt, of those how many were in a cache, and new ones."""

    prompt_tokens: int
    cached_tokens: int = 0
    completion_tokens: int = 0


class Generation(Iterator[Piece]):
    """The text of a request, piece by piece, as the engine makes it. Iterating waits for the next piece.

    `on_piece` is called for each piece, and with None at the end, by the engine's thread: it must return at once. With
    it there is nothing to iterate over.

    finish_reason  None while the text grows; then "stop" (the model, a stop string or the grammar ended it), "length"
                   (`max_tokens`, or the context is full), "cancelled" or "error".
    error          the exception behind "error"; iterating raises it.
    stop_string    the stop string that ended the text.
    usage          numbers of tokens so far.
    first_s, last_s  when the first token was made, and the last so far, on the clock of time.perf_counter.
    """

    def __init__(self, usage: Usage, on_piece: Callable[[Piece | None], None] | None, wake: Callable[[], None]) -> None:
        self.usage = usage
        self.finish_reason: str | None = None
        self.stop_string: str | None = None
        self.error: BaseException | None = None
        self.is_cancelled = False
        self.first_s: float | None = None
        self.last_s: float | None = None
        self._on_piece, self._wake = on_piece, wake
        self._pieces: queue.SimpleQueue[Piece | None] = queue.SimpleQueue()
        self._is_read = False
        self._held: list[Piece | None] | None = None

    def __next__(self) -> Piece:
        piece = None if self._is_read else self._pieces.get()
        if piece is not None:
            return piece
        self._is_read = True
        if self.error is not None:
            raise self.error
        raise StopIteration

    def cancel(self) -> None:
        """End the text before its next token. The reason is "cancelled", unless it has ended already."""
        self.is_cancelled = True
        self._wake()

    def text(self) -> str:
        """Wait for the end, and return the text of the pieces that were not read yet."""
        return "".join(piece.text for piece in self)

    def give(self, piece: Piece) -> None:
        """Pass on a piece: for the engine."""
        if piece.tokens:
            self.last_s = time.perf_counter()
            if self.first_s is None:
                self.first_s = self.last_s
        self._pass_on(piece)

    def end(self, reason: str, error: BaseException | None = None) -> None:
        """End the text: for the engine. Only the first end counts."""
        if self.finish_reason is None:
            self.error, self.finish_reason = error, reason
            self._pass_on(None)

    def hold(self) -> None:
        """Keep what is given until `release`: for the engine, which calls both."""
        self._held = []

    def release(self) -> None:
        """Pass on what was given since `hold`."""
        held, self._held = self._held, None
        for piece in held or ():
            self._pass_on(piece)

    def _pass_on(self, piece: Piece | None) -> None:
        if self._held is not None:
            self._held.append(piece)
            return
        if self._on_piece is None:
            self._pieces.put(piece)
            return
        try:
            self._on_piece(piece)
        except Exception as error:  # the other texts go on
            self.error, self.is_cancelled = error, True
