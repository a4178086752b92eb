"""Drafts: guesses at the next tokens of a text, of which the model checks several in one step.

Each token is chosen from the model's own logits, with the sampler of the text. A guess that is the chosen token saves a
step, and another one costs little: texts are the same with a draft as without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kernmill.ir import SettingError

from ...arguments import is_whole
from ..generate import Model
from .slots import common_length
from .steps import Row, Steps

__all__ = ["DraftOptions", "DraftSource", "ModelDraft", "NgramDraft", "checked_size", "guess_of"]

GUESSES = 7  # that are checked in one step, together with the token before them
MOST_GUESSES = 63


class DraftSource(Protocol):
    """A source of guesses for the slots of one engine.

    `most`, `least`: a step checks up to `most` guesses, and none if there are fewer than `least`.
    """

    most: int
    least: int

    def open(self, model: Model, slots: int, context: int) -> None:
        """Prepare for an engine with these slots.

        Raises:
            SettingError: it does not fit the model.
        """
        ...

    def begin(self, number: int) -> None:
        """A text begins in this slot."""
        ...

    def guess(self, number: int, ids: Sequence[int], most: int) -> Sequence[int]:
        """Return up to `most` tokens that may follow the text of a slot; none is a good answer, too."""
        ...


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """How next tokens are guessed.

    source     "ngram": look-up in the text; else the path of a smaller model of the same vocabulary.
    most, least  of guesses that a step checks; see DraftSource.
    certainty  a draft model guesses on while the probability of its token is at least this.

    Raises:
        SettingError: a value outside its range.
    """

    source: str
    most: int = GUESSES
    least: int = 0
    certainty: float = 0.75

    def __post_init__(self) -> None:
        _check_guess_sizes("DraftOptions", self.most, self.least)
        if not 0 <= self.certainty <= 1:
            raise SettingError(f"DraftOptions: certainty={self.certainty!r}: must be from 0 to 1.")

    def opened(self, capacity: int) -> NgramDraft | ModelDraft:
        """Return the source of guesses; a draft model has this capacity."""
        if self.source == "ngram":
            return NgramDraft(most=self.most, least=self.least)
        model = Model.from_gguf(self.source, capacity=capacity)
        return ModelDraft(model, most=self.most, least=self.least, certainty=self.certainty)


class NgramDraft:
    """Guesses by look-up: what followed the last tokens where they were in the text before.

    It costs next to nothing, and guesses well where a text repeats its prompt: summaries, code that is changed.
    `longest`, `shortest`: how many of the last tokens must be the same; longer ones are looked up first.

    `most`, `least`: see DraftSource.

    Raises:
        SettingError: no sizes.
    """

    def __init__(self, longest: int = 4, shortest: int = 2, *, most: int = GUESSES, least: int = 0) -> None:
        _check_guess_sizes("NgramDraft", most, least)
        self.most, self.least = most, least
        if not 1 <= shortest <= longest:
            raise SettingError(f"NgramDraft: longest={longest}, shortest={shortest}: must be 1 <= shortest <= longest.")
        self._sizes = range(longest, shortest - 1, -1)
        self._followed: dict[int, dict[tuple[int, ...], int]] = {}  # of a slot: where the token after an n-gram is
        self._read: dict[int, int] = {}  # of a slot: tokens that were looked at

    def open(self, model: Model, slots: int, context: int) -> None:
        """Forget all texts."""
        self._followed.clear()
        self._read.clear()

    def begin(self, number: int) -> None:
        """A text begins in this slot."""
        self._followed[number], self._read[number] = {}, 0

    def guess(self, number: int, ids: Sequence[int], most: int) -> Sequence[int]:
        """Return up to `most` tokens that may follow."""
        followed = self._followed[number]
        for end in range(self._read[number] + 1, len(ids)):
            for size in self._sizes:
                if size <= end:
                    followed[tuple(ids[end - size : end])] = end
        self._read[number] = len(ids) - 1
        for size in self._sizes:
            start = followed.get(tuple(ids[-size:]))
            if start is not None:
                return ids[start : start + most]
        return ()


class ModelDraft:
    """Guesses by a smaller model with the same vocabulary: its best tokens, one by one.

    `certainty`: it ends before a token whose probability is less. `most`, `least`: see DraftSource.

    Raises:
        SettingError: no sizes.
    """

    def __init__(self, model: Model, *, most: int = GUESSES, least: int = 0, certainty: float = 0.0) -> None:
        _check_guess_sizes("ModelDraft", most, least)
        self.model, self.most, self.least, self._certainty = model, most, least, certainty
        self._steps: Steps | None = None
        self._seen: list[list[int]] = []

    def open(self, model: Model, slots: int, context: int) -> None:
        """Make a cache for the slots.

        Raises:
            SettingError: the model has another vocabulary.
        """
        own, others = self.model.tokenizer, model.tokenizer
        sizes = self.model.architecture.vocabulary, model.architecture.vocabulary
        is_same = sizes[0] == sizes[1] if own is None or others is None else own.tokens == others.tokens
        if not is_same:
            raise SettingError(
                f"draft: {self.model.config.name} has another vocabulary than {model.config.name}: {sizes[0]} tokens, "
                f"and {sizes[1]}. Choose a smaller model of the same family."
            )
        length = min(context, self.model.capacity)
        self._steps = Steps(self.model, slots, length, min(_CHUNK, length), self.model.cache_type)
        self._seen = [[] for _ in range(slots)]

    def begin(self, number: int) -> None:
        """A text begins in this slot: what it shares with the one before is kept."""

    def guess(self, number: int, ids: Sequence[int], most: int) -> Sequence[int]:
        """Return up to `most` tokens that may follow."""
        steps, found = self._steps, list[int]()
        assert steps is not None
        if len(ids) + most > steps.context:
            return ()
        wanted, known = list(ids), None if self.model.tokenizer is None else len(self.model.tokenizer)
        seen = self._seen[number]
        seen = self._seen[number] = seen[: min(common_length(seen, wanted), len(wanted) - 1)]
        while len(found) < most:
            left = len(wanted) - len(seen)
            size = steps.piece_size(left, steps.context - len(seen))
            part = wanted[len(seen) : len(seen) + size]
            if size > 1:
                logits = steps.read(number, len(seen), part, size)
            else:
                logits = steps.next_tokens([Row(number, len(seen), part[0])])[0]
            seen += part
            if len(seen) == len(wanted):
                scores = logits[:known]
                best = int(np.argmax(scores))
                if 1 / np.exp(scores - scores[best]).sum() < self._certainty:
                    break
                found.append(best)
                wanted.append(best)
        return found


def guess_of(draft: DraftSource, number: int, ids: Sequence[int], room: int) -> Sequence[int]:
    """Return guesses at the next tokens of a slot, at most `room`; none if there are fewer than `draft.least`."""
    most = min(draft.most, room)
    found = draft.guess(number, ids, most) if most > 0 else ()
    return found if len(found) >= draft.least else ()


def checked_size(draft: DraftSource) -> int:
    """Return the tokens of a step that checks guesses: the most, and the token before them, filled up."""
    return max(GUESSES + 1, 1 << draft.most.bit_length())


def _check_guess_sizes(name: str, most: int, least: int) -> None:
    if not is_whole(most, 1) or not is_whole(least, 0) or not least <= most <= MOST_GUESSES:
        raise SettingError(
            f"{name}: most={most!r}, least={least!r}: must be integers with 0 <= least <= most, and most from 1 to "
            f"{MOST_GUESSES}."
        )


_CHUNK = 256
