"""class LLM: a model with an engine: completions, conversations with tools, embeddings, for several callers at once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from kernmill.ir import SettingError

from ..context_shift import kept_behind
from ..engine import DraftOptions, DraftSource, Engine, GenerationRequest, ModelDraft
from ..generate import Model
from ..sampling import SamplingOptions
from .pieces import Feed
from .prompts import Prompts
from .reply import Prompt, Reply, TextOptions, TokenReader

__all__ = ["LLM"]

Array = np.ndarray[Any, Any]
_TOGETHER = 32  # texts whose vectors are computed before other calls get their turn
_LEAST_NORM = 1e-12


class LLM:
    """A language model for several texts at once.

    `model` is a `Model`, or the path of a GGUF file. `template`: Jinja source that replaces that of the file. The other
    options are those of `Engine` for its model: `slots` texts at once, `context` tokens each. `draft` guesses next
    tokens: "ngram" looks them up in the text, a path is a smaller model of the same vocabulary; DraftOptions says more.

    Calls may come from several threads. `with LLM(path) as llm:` closes the model at the end.

    Raises:
        FormatError: the file cannot be read, or has no model that kernmill can run. SettingError: it has no tokenizer.
    """

    def __init__(
        self,
        model: Model | str | os.PathLike[str],
        *,
        template: str | None = None,
        sampling: SamplingOptions | None = None,
        draft: DraftSource | DraftOptions | str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        self._owns = not isinstance(model, Model)
        self.model = model if isinstance(model, Model) else Model.from_gguf(model, capacity=options.get("context"))
        if self.model.tokenizer is None:
            raise SettingError("LLM: the model was built without a tokenizer. Open a file that has one.")
        self.tokenizer = self.model.tokenizer
        self.sampling = SamplingOptions() if sampling is None else sampling
        is_causal = self.model.architecture.is_causal
        self._small: Model | None = None  # a draft model that was opened here
        if isinstance(draft, (str, os.PathLike)):
            draft = DraftOptions(os.fspath(draft))
        if isinstance(draft, DraftOptions):
            draft = draft.opened(self.model.capacity)
            self._small = draft.model if isinstance(draft, ModelDraft) else None
        # an encoder gives vectors only
        self._engine = Engine(self.model, draft=draft, **options) if is_causal else None
        self.context = self.model.capacity if self._engine is None else self._engine.context
        self.prompts = Prompts(self.model, self.tokenizer, self.context, template)

    # --- calls
    def __call__(self, prompt: str | Sequence[int], **options: Any) -> Reply:
        """Return the reply to a prompt, whole. Options: `response_format` (see `Prompts.conversation`), `sampling`,
        `max_tokens`, `stop`, `logprobs`, `keep`, and fields of `SamplingOptions` such as `temperature`."""
        return self.stream(prompt, **options).wait()

    def stream(
        self, prompt: str | Sequence[int], *, response_format: Mapping[str, Any] | None = None, **options: Any
    ) -> Reply:
        """Return the reply to a prompt while it is generated: iterate over its parts, or `async for`."""
        return self.start(self.prompts.prompt(prompt, response_format), self.options(options))

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Reply:
        """Return the next message of a conversation, whole. Options: those of a call, and those of `conversation`."""
        return self.chat_stream(messages, **options).wait()

    def chat_stream(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Reply:
        """Return the next message of a conversation while it is generated."""
        names = ("tools", "tool_choice", "response_format", "template_values", "splits_reasoning")
        own = {name: options.pop(name) for name in names if name in options}
        return self.start(self.prompts.conversation(messages, **own), self.options(options))

    def embed(self, texts: str | Iterable[str]) -> list[Array]:
        """Return a vector of length 1 for each text."""
        given = [texts] if isinstance(texts, str) else list(texts)
        return self.vectors([self.prompts.encode(text) for text in given])

    def vectors(self, texts: Sequence[Sequence[int]], dimensions: int | None = None) -> list[Array]:
        """Return the vectors of texts as token ids, of length 1. Shapes: (dimensions,).

        Raises:
            SettingError: the model has no vector of a text, or a shorter one.
        """
        if self.model.architecture.pooling.kind == "none":
            raise SettingError("embeddings: the pooling of this model is none; it gives a vector for each token.")
        found: list[Array] = []
        for start in range(0, len(texts), _TOGETHER):
            found += list(self.model.embed(texts[start : start + _TOGETHER]).numpy())
        if dimensions is None or not found or dimensions == found[0].size:
            return found
        if dimensions > found[0].size:
            raise SettingError(f"dimensions: must be at most {found[0].size}, the width of this model.")
        short = [vector[:dimensions] for vector in found]
        return [vector / max(float(np.linalg.norm(vector)), _LEAST_NORM) for vector in short]

    def rerank(self, query: str, documents: Sequence[str]) -> list[float]:
        """Return how well each document answers a query, by a model that ranks; the more the better.

        Raises:
            SettingError: the file is not of a model that ranks, or a text is too long.
        """
        for text in (query, *documents):
            self.prompts.check_length(text)
        found: list[float] = []
        for start in range(0, len(documents), _TOGETHER):
            found += self.model.rerank(query, documents[start : start + _TOGETHER]).tolist()
        return found

    # --- the steps of a call
    @property
    def engine(self) -> Engine:
        """The engine of its texts.

        Raises:
            SettingError: the model is an encoder.
        """
        if self._engine is None:
            raise SettingError(f"LLM: {self.model.config.name} is an encoder: it gives vectors, and writes no text.")
        return self._engine

    @property
    def is_causal(self) -> bool:
        """True if it writes text; an encoder gives vectors only."""
        return self._engine is not None

    @property
    def has_failed(self) -> bool:
        """True after a step of the model failed: it writes no more text."""
        return self._engine is not None and self._engine.has_failed

    def options(self, given: Mapping[str, Any]) -> TextOptions:
        """Return options from keywords: those of a call but `response_format`.

        Raises:
            SettingError: an unknown option.
        """
        rest = dict(given)
        own = {name: rest.pop(name) for name in ("max_tokens", "logprobs", "keep") if name in rest}
        stop = rest.pop("stop", None)
        stops = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
        sampling = rest.pop("sampling", None) or self.sampling
        names = [one.name for one in fields(SamplingOptions)]
        unknown = [name for name in rest if name not in names]
        if unknown:
            known = ", ".join(("sampling", "max_tokens", "stop", "logprobs", "keep", *names))
            raise SettingError(f"LLM: there is no option {unknown[0]}. Options are {known}.")
        if rest:
            sampling = SamplingOptions(**{**{name: getattr(sampling, name) for name in names}, **rest})
        return TextOptions(sampling, stop=stops, **own)

    def start(self, prompt: Prompt, options: TextOptions) -> Reply:
        """Start to generate the reply to a prompt.

        Raises:
            SettingError: the prompt is too long. QueueFull: too many texts wait.
        """
        reads = prompt.format is not None and bool(options.stop)
        request = GenerationRequest(
            prompt.tokens, options.sampling, options.max_tokens, () if reads else options.stop,
            0 if options.logprobs is None else max(1, options.logprobs), prompt.grammar,
            (lambda: TokenReader(prompt, self.tokenizer, options.stop).watch) if reads else None,
            kept_behind(options.keep, prompt.tokens, self.tokenizer.bos_id),
        )  # fmt: skip
        feed = Feed()
        return Reply(self.engine.submit(request, feed), feed, prompt, self.tokenizer, options)

    # --- its end
    def close(self, wait_s: float = 0) -> None:
        """End all texts, after at most `wait_s` seconds, and release the model if a path was given."""
        if self._engine is not None:
            self._engine.close(wait_s)
        if self._small is not None:
            self._small.close()
        if self._owns:
            self.model.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
