"""`drafted`: new tokens of a text, of which one step of the model checks several that a draft guessed.

Tests: tests/kernmill/llm/test_drafted.py.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernmill.ir import SettingError

from .generate import Model
from .generation import Generations, Text, TokenGeneration
from .sampling import Chooser
from .sequences import DraftSource
from .sequences.drafts import checked_size, guess_of
from .sources import check_without_source

__all__ = ["GuessCounts", "drafted", "open_draft"]

Array = np.ndarray[Any, Any]


@dataclass
class GuessCounts:
    """Tokens that a draft guessed, and how many of them were right."""

    guessed: int = 0
    accepted: int = 0


def open_draft(model: Model, draft: DraftSource) -> None:
    """Prepare a draft for the one text of a model.

    Raises:
        SettingError: the draft has another vocabulary, or the model has states or several sequences.
    """
    check_without_source(model.architecture, "draft")
    if len(model._seen) != 1:
        raise SettingError(f"draft: the model was built for {len(model._seen)} texts at once. Build it for one.")
    if model._kept.is_needed:
        raise SettingError(
            f"draft: {model.config.name} has a state for each text, which cannot go back behind a wrong guess. "
            "Leave out the draft."
        )
    draft.open(model, 1, model.capacity)


def drafted(
    model: Model,
    draft: DraftSource,
    counts: GuessCounts,
    ids: Sequence[int],
    sampler: Chooser,
    max_tokens: int | None,
    keep: int | None = None,
) -> TokenGeneration:
    """New tokens one by one, as of `model.generate`, with an open draft. `counts` grows."""
    text = model._text_of(ids, max_tokens, keep)
    return TokenGeneration(Generations([text], _generated(model, draft, counts, text, sampler)))


def _generated(
    model: Model, draft: DraftSource, counts: GuessCounts, text: Text, sampler: Chooser
) -> Generator[list[int | None]]:
    """Each token is chosen from the model's logits; a guess that is the chosen token saves a step."""
    ends = frozenset[int]() if model.tokenizer is None else model.tokenizer.end_ids
    known = None if model.tokenizer is None else len(model.tokenizer)
    size, guess = checked_size(draft), list[int]()
    draft.begin(0)
    try:
        while text.finish_reason is None:
            if not guess and text.keep is not None and len(text.ids) > model.capacity:
                model._make_room(0, text)
                draft.begin(0)
            ids = [*text.ids, *guess]
            logits = _guesses_checked(model, ids, len(guess) + 1, size) if guess else model._next([ids])
            counts.guessed += len(guess)
            for position, scores in enumerate(logits):
                token = sampler.choose(scores[:known], text.ids)
                added = text.add(token, is_end=token in ends)
                if added is not None:
                    yield [added]
                if text.finish_reason is not None or position == len(guess) or token != guess[position]:
                    break
                counts.accepted += 1
            fits = len(text.ids) - 1 + size <= model.capacity
            guess = [*guess_of(draft, 0, text.ids, text.left - 1)] if fits else []
    finally:
        model._forget_shifted([text])


def _guesses_checked(model: Model, ids: list[int], count: int, size: int) -> Array:
    """The logits after each of the last `count` tokens, computed in a block of `size`. Shapes: (count, vocabulary)."""
    first = len(ids) - count
    with model._stepping:
        model._rewind([ids[: first + 1]])
        for _ in model._run([ids[:first]], model._last):  # another call used the cache meanwhile
            pass
        block = [*ids[first:], *[0] * (size - count)]
        logits = model._run_block([block], [first], ([count - 1], [count]), "_each")
        model._seen[0] = ids
        model.computed_tokens += count
    return logits[:count]
