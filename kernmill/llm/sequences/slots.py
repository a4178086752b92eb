"""class Slot: a sequence of the engine's cache; class Task: the text that is generated in it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernmill.runtime import recorder

from ..context_shift import kept_tokens
from ..generation import StopStrings
from ..masks import MaskedSampler
from ..tokenizer import Tokenizer
from .requests import Generation, GenerationRequest, Piece, TokenLogprob, Usage

__all__ = ["Slot", "SlotState", "Task", "common_length"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class SlotState:
    """A slot as it is now. `tokens`: how many its cache holds; `prompt_left`: of a prompt, still to be read."""

    number: int
    is_busy: bool
    tokens: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    prompt_left: int


class Task:
    """A request that is being answered: its tokens, sampler, limits and text."""

    def __init__(
        self, request: GenerationRequest, generation: Generation, tokenizer: Tokenizer | None, capacity: int
    ) -> None:
        self.request, self.generation = request, generation
        self.ids = [*request.tokens]
        self.prompt_tokens = len(self.ids)
        self.keep = None if request.keep is None else kept_tokens(request.keep, self.prompt_tokens, capacity)
        self.dropped = 0
        # the last token of a text is not in the cache
        room = capacity + 1 - self.prompt_tokens if self.keep is None else sys.maxsize
        self.limit = room if request.max_tokens is None else min(request.max_tokens, room)
        self.ends = frozenset[int]() if tokenizer is None else tokenizer.end_ids
        sampler = request.sampling.sampler(tokenizer)
        grammar = request.grammar
        self.sampler = sampler if grammar is None else MaskedSampler(sampler, grammar.start(), self.ends)
        self.known = None if tokenizer is None else len(tokenizer)  # embeddings may be padded past the vocabulary
        self._stream = None if tokenizer is None else tokenizer.stream()
        self._stops = StopStrings(request.stop)
        self._watch = None if request.watcher is None else request.watcher()

    @property
    def made(self) -> int:
        """Number of new tokens."""
        return len(self.ids) + self.dropped - self.prompt_tokens

    def take(self, logits: Array) -> int:
        """Choose the next token from logits, pass on its text, and end the generation where it is to end.

        Returns the number of new tokens: 0 if the model ended the text.
        """
        scores = logits[: self.known]
        token = self.sampler.choose(scores, self.ids)
        if token in self.ends:
            self.finish("stop")
            return 0
        self.ids.append(token)
        recorder.tick("tokens")
        logprobs = (_logprob(scores, token, self.request.logprobs),) if self.request.logprobs else ()
        text = "" if self._stream is None else self._stops.push(self._stream.push(token))
        usage = self.generation.usage
        self.generation.usage = Usage(usage.prompt_tokens, usage.cached_tokens, self.made)
        self.generation.give(Piece(text, (token,), logprobs))
        found = self._stops.found if self._watch is None else self._watch(token)
        if found is not None:
            self.generation.stop_string = found
            self.generation.end("stop")
        elif self.made >= self.limit:
            self.finish("length")
        return 1

    def finish(self, reason: str) -> None:
        """End the text, after what was held back of it."""
        if self._stream is not None and self._stops.found is None:
            text = self._stops.push(self._stream.finish())
            if self._stops.found is not None:
                self.generation.stop_string, reason = self._stops.found, "stop"
            text += self._stops.finish()
            if text:
                self.generation.give(Piece(text, ()))
        self.generation.end(reason)

    @property
    def has_ended(self) -> bool:
        """True if no token is to be made any more."""
        return self.generation.finish_reason is not None


@dataclass
class Slot:
    """A sequence of the cache. `seen`: the tokens in it; `used`: the step at which it was last needed; `change`:
    the model's `changes` when its text began."""

    number: int
    seen: list[int] = field(default_factory=list[int])
    task: Task | None = None
    used: int = 0
    change: int = 0

    @property
    def left(self) -> int:
        """How many tokens of its text are not in the cache."""
        return 0 if self.task is None else len(self.task.ids) - len(self.seen)

    @property
    def exact(self) -> list[int]:
        """The first tokens of the cache whose keys depend on no dropped token: other texts may begin with them."""
        return self.seen[: self.task.keep] if self.task is not None and self.task.dropped else self.seen

    def state(self) -> SlotState:
        """The slot as it is now."""
        task = self.task
        usage = Usage(0) if task is None else task.generation.usage
        waiting = 0 if task is None or task.made else task.prompt_tokens - len(self.seen)
        return SlotState(
            self.number, task is not None, len(self.seen), usage.prompt_tokens, usage.cached_tokens,
            usage.completion_tokens, waiting,
        )  # fmt: skip


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """The number of tokens that two sequences begin with together."""
    count = min(len(a), len(b))
    if a[:count] == b[:count]:
        return count
    return next(position for position, (one, other) in enumerate(zip(a, b, strict=False)) if one != other)


def _logprob(scores: Array, token: int, count: int) -> TokenLogprob:
    """By the model alone: before bias, penalties, temperature and grammar."""
    exact = scores.astype(np.float64)
    logs = exact - exact.max()
    logs -= np.log(np.exp(logs).sum())
    count = min(count, logs.size)
    best = np.argpartition(-logs, count - 1)[:count]
    best = best[np.argsort(-logs[best], kind="stable")]
    return TokenLogprob(token, float(logs[token]), tuple((int(i), float(logs[i])) for i in best))
