"""class Model: an architecture with its weights, a cache and a tokenizer: logits, embeddings, and generation."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kernmill import FormatError, IndexRangeError, SettingError, Tensor, jit, no_grad

from .arch import ARCHITECTURES, Architecture, Cache, Config
from .sampling import Sampler
from .tokenizer import Tokenizer

__all__ = ["Model"]

Weights = Callable[[str], Tensor | None]
Array = np.ndarray[Any, Any]
DEFAULT_CAPACITY = 4096  # tokens; less where the model was trained on less


class Model:
    """A language model that is ready to run.

    `weights` gives the tensor of a name, or None where there is none. `capacity` is how many tokens the cache holds, by
    default what the model was trained on, at most 4096. `block` is how many tokens of a prompt are computed together.
    One call at a time: the cache is state.

    Raises:
        FormatError: an unknown architecture, or tensors and metadata that do not fit together.
    """

    def __init__(
        self,
        config: Config,
        weights: Weights,
        tokenizer: Tokenizer | None = None,
        *,
        capacity: int | None = None,
        block: int = 64,
    ) -> None:
        if config.name not in ARCHITECTURES:
            raise FormatError(
                f"general.architecture is {config.name!r}, which kernmill cannot run yet. "
                f"It runs {', '.join(sorted(ARCHITECTURES))}."
            )
        capacity = min(config.context, DEFAULT_CAPACITY) if capacity is None else capacity
        if capacity < 1 or block < 1:
            raise SettingError(f"Model: capacity={capacity}, block={block}. Give whole numbers, 1 or more.")
        self.config, self.tokenizer = config, tokenizer
        with no_grad():
            self.architecture: Architecture = ARCHITECTURES[config.name](config, weights, capacity)
            self._cache = Cache.empty(self.architecture.config, capacity)
        self.capacity, self.block = capacity, min(block, capacity)
        if tokenizer is not None and len(tokenizer) > self.architecture.vocabulary:
            raise FormatError(
                f"tokenizer.ggml.tokens has {len(tokenizer)} tokens, and token_embd.weight has rows for "
                f"{self.architecture.vocabulary}. The file's vocabulary does not belong to its tensors."
            )
        self._seen: list[int] = []  # the tokens whose keys and values are in the cache
        self._last = jit(self._last_logits)
        self._hidden = jit(self._hidden_states)

    @classmethod
    def of(cls, metadata: Mapping[str, Any], weights: Weights, **options: Any) -> Model:
        """From the metadata of a GGUF file: its sizes and its tokenizer."""
        return cls(Config.of(metadata), weights, Tokenizer(metadata), **options)

    # --- what is captured: a position is data, so that one graph serves them all
    def _last_logits(self, tokens: Tensor, position: Tensor, last: Tensor, cache: Cache) -> Tensor:
        hidden = self.architecture.forward(tokens, position, cache)
        return self.architecture.logits(hidden.index_select(0, last)).squeeze(0)

    def _hidden_states(self, tokens: Tensor, position: Tensor, cache: Cache) -> Tensor:
        return self.architecture.forward(tokens, position, cache)

    # --- tokens into the cache
    def _checked(self, ids: Sequence[int], call: str) -> list[int]:
        known = [int(i) for i in ids]
        if not known:
            raise SettingError(f"{call}: no tokens. Give at least one, such as the begin token.")
        if len(known) > self.capacity:
            raise SettingError(
                f"{call}: {len(known)} tokens, and the cache holds {self.capacity}. Shorten the text, or build the "
                f"model with a larger capacity (it was trained on {self.config.context})."
            )
        bad = [i for i in known if not 0 <= i < self.architecture.vocabulary]
        if bad:
            raise IndexRangeError(
                f"{call}: no token has the id {bad[0]}. The model knows 0 to {self.architecture.vocabulary - 1}."
            )
        return known

    def _blocks(self, ids: list[int]) -> Iterator[tuple[int, Tensor, Tensor]]:
        """New tokens in blocks: how many there are, the tokens, the position; a block that is not full is padded."""
        start = len(self._seen)
        while start < len(ids):
            size = 1 if len(ids) - start == 1 else self.block
            part = ids[start : start + size]
            padded = np.zeros(size, np.int32)
            padded[: len(part)] = part
            yield len(part), Tensor(padded), Tensor(np.int32(start))
            self._seen = ids[: start + len(part)]  # after the caller has computed them
            start += len(part)

    def _rewind(self, ids: list[int]) -> None:
        """Keep what the cache and these tokens have in common at the front; the last one is computed again."""
        same = 0
        for old, new in zip(self._seen, ids[:-1], strict=False):
            if old != new:
                break
            same += 1
        self._seen = self._seen[:same]

    # --- results
    def next_logits(self, ids: Sequence[int]) -> Array:
        """The logits of the token after these. Shapes: (vocabulary,).

        What the last call has computed for the same first tokens is used again.
        """
        known = self._checked(ids, "logits")
        self._rewind(known)
        result: Array | None = None
        with no_grad():
            for count, tokens, position in self._blocks(known):
                last = Tensor(np.array([count - 1], np.int32))
                result = self._last(tokens, position, last, self._cache).numpy()
        assert result is not None
        return result

    def hidden(self, ids: Sequence[int]) -> Tensor:
        """The last hidden state of each token. Shapes: (tokens, width)."""
        return self._states(ids, "hidden")

    def _states(self, ids: Sequence[int], call: str) -> Tensor:
        known = self._checked(ids, call)
        self._seen = []
        with no_grad():
            parts = [
                self._hidden(tokens, position, self._cache).numpy()[:count]
                for count, tokens, position in self._blocks(known)
            ]
        return Tensor(np.concatenate(parts))

    def logits(self, ids: Sequence[int]) -> Tensor:
        """The logits of the token after each of these. Shapes: (tokens, vocabulary)."""
        with no_grad():
            return self.architecture.logits(self._states(ids, "logits")).realize()

    def embed(self, ids: Sequence[int]) -> Tensor:
        """One vector for a text: the mean of its hidden states, of length 1. Shapes: (width,)."""
        return self._states(ids, "embed").mean(0).normalize(axis=0).realize()

    def generate(
        self, ids: Sequence[int], sampler: Sampler | None = None, max_tokens: int | None = None
    ) -> Generator[int]:
        """New tokens one by one, until one ends the text, `max_tokens` are there, or the cache is full.

        The token that ends the text is not among them. Greedy without a sampler.
        """
        sampler = Sampler(temperature=0) if sampler is None else sampler
        known = self._checked(ids, "generate")
        ends = frozenset[int]() if self.tokenizer is None else self.tokenizer.end_ids
        left = self.capacity - len(known) + 1 if max_tokens is None else max_tokens
        while left > 0 and len(known) <= self.capacity:
            token = sampler.choose(self.next_logits(known), known)
            if token in ends:
                return
            yield token
            known.append(token)
            left -= 1

    def complete(self, text: str, sampler: Sampler | None = None, max_tokens: int | None = None) -> Generator[str]:
        """The text that follows, piece by piece.

        Raises:
            SettingError: the model has no tokenizer, or the text is too long.
        """
        if self.tokenizer is None:
            raise SettingError("complete: the model was built without a tokenizer. Use generate() with token ids.")
        stream = self.tokenizer.stream()
        for token in self.generate(self.tokenizer.encode(text), sampler, max_tokens):
            yield stream.push(token)
        yield stream.finish()
