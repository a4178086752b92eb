"""class KeptStates: how sequences of a model with recurrent layers go back to an earlier token.

Keys and values are stored by position, so a sequence goes back by forgetting the last ones. A state is that of one
token only. The cache has a second row of states for each sequence. The state before the last token of a prompt is kept
there: another answer to the prompt, or a longer prompt, begins from it. Otherwise a sequence begins again.
Tests: tests/kernmill/llm/test_kept_states.py.
"""

from __future__ import annotations

from collections.abc import Callable

from kernmill import Tensor, Variable, no_grad

from ..captures import Jit
from .arch import Cache

__all__ = ["KeptStates"]


class KeptStates:
    """The kept states of a cache. `is_needed`: the model has states, here or on other ranks, which do with theirs what
    `announce` tells them."""

    def __init__(self, cache: Cache, sequences: int, *, is_needed: bool, announce: Callable[[int, int], None]) -> None:
        self.is_needed, self._announce = is_needed, announce
        self._cache, self._sequences = cache, sequences
        self.lengths = [0] * sequences  # tokens before the kept state; 0: none is kept
        self._rows = [Variable(name, 0, max(1, 2 * sequences - 1)) for name in ("source_row", "target_row")]
        self._copy = Jit(self._copied, runs_first=False)

    def _copied(self, source: object, target: object) -> Tensor:
        self._cache.copy_states(source, target)
        return Tensor([0])

    def move(self, source: int, target: int) -> None:
        """Copy the states of a row of the cache to another one, on all ranks."""
        self._announce(source, target)
        with no_grad():
            self._copy(*(row.bind(number) for row, number in zip(self._rows, (source, target), strict=True)))

    def rewound(self, number: int, have: int, want: int) -> int:
        """Take a sequence of `have` tokens back to at most `want` of them. Returns how many it has then."""
        if not self.is_needed or want >= have:
            return min(have, want)
        length = self.lengths[number]
        if not 0 < length <= want:
            self.lengths[number] = 0
            return 0
        self.move(self._sequences + number, number)
        return length

    def keep(self, number: int, length: int) -> None:
        """Keep the state of a sequence that has this many tokens."""
        if self.is_needed and length and length != self.lengths[number]:
            self.move(number, self._sequences + number)
            self.lengths[number] = length

    def forget(self) -> None:
        """Keep none of the states."""
        self.lengths = [0] * self._sequences
