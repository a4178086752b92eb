"""Masks: the tokens that a text may continue with, such as a grammar's, and a sampler under one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

import numpy as np

from kernmill.ir import FormatError

from .sampling import Chooser

__all__ = ["Mask", "MaskSource", "MaskedSampler"]

Array = np.ndarray[Any, Any]


class Mask(Protocol):
    """The tokens that a text may continue with. Each text has its own mask, which changes with each token."""

    def allowed(self, vocabulary: int, /) -> Any:
        """Return a NumPy array of bool: which tokens may come next. Shapes: (vocabulary,)."""
        ...

    def accept(self, token: int, /) -> None:
        """The text continues with this token."""
        ...


class MaskSource(Protocol):
    """A grammar: it makes a mask for each text."""

    def start(self) -> Mask:
        """Return the mask of a text that begins now."""
        ...


class MaskedSampler:
    """A sampler under a mask. `ends`: tokens that end the text; the mask does not see them."""

    def __init__(self, sampler: Chooser, mask: Mask, ends: Collection[int]) -> None:
        self._sampler, self._mask, self._ends = sampler, mask, ends

    def choose(self, logits: Array, recent: Sequence[int] = ()) -> int:
        """The id of the next token. Shapes: logits (vocabulary,).

        Raises:
            FormatError: no token may come next.
        """
        allowed = self._mask.allowed(logits.size)
        if not allowed.any():
            raise FormatError("the grammar cannot go on: no token of the vocabulary may come next.")
        token = self._sampler.choose(np.where(allowed, logits, -np.inf), recent)
        if token not in self._ends:
            self._mask.accept(token)
        return token
