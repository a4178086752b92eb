"""class Sources: the texts that an encoder reads for a decoder, one for each sequence.

Tests: tests/kernmill/llm/test_sources.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernmill import SettingError, Tensor, no_grad

from .arch import Architecture
from .arch.t5 import T5
from .embedding import WholeTexts

__all__ = ["Sources", "check_without_source"]

_PIECE = 64  # tokens: sources are padded to multiples of it, so that few graphs serve all of them


class Sources:
    """The sources of a model's sequences. A source is encoded once, when a step first needs it."""

    def __init__(self, architecture: T5, texts: WholeTexts, capacity: int, sequences: int) -> None:
        self._architecture, self._texts, self._capacity = architecture, texts, capacity
        self._ids: list[list[int]] = [[] for _ in range(sequences)]
        architecture.allot(sequences)

    def put(self, number: int, ids: Sequence[int]) -> bool:
        """Encode a source for a sequence, and return True; False: it has this one."""
        if self._ids[number] == [*ids]:
            return False
        states = self._texts.hidden(ids)
        size = min(self._capacity, -(-len(ids) // _PIECE) * _PIECE)
        padded = np.zeros((size, states.shape[1]), np.float32)
        padded[: len(ids)] = states
        self._ids[number] = []
        with no_grad():
            self._architecture.put_source(number, Tensor(padded), len(ids))
        self._ids[number] = [*ids]
        return True

    def check(self, call: str) -> None:
        """Check that the first sequence has a source. Raises SettingError."""
        if not self._ids[0]:
            raise SettingError(f"{call}: the decoder has no source yet. Give one: model.encode(text).")

    def clear(self) -> None:
        """Forget all of them: weights changed."""
        self._ids = [[] for _ in self._ids]


def check_without_source(architecture: Architecture, call: str) -> None:
    """Raise SettingError for a model of an encoder and a decoder, where there is no way to give it a source."""
    if isinstance(architecture, T5):
        raise SettingError(
            f"{call}: {architecture.config.name} has an encoder and a decoder, which only Model and kernmill run use."
        )
