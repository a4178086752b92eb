"""class Steps: the captured steps of an engine over a cache of several sequences.

There are two kinds of steps. One computes a token for each of some sequences; their number is rounded up to a power of
two by repeating the first. The other computes a piece of one prompt, of one of a few sizes, padded at its end.
Sequences and positions are data of a step: sequences join and leave, and texts grow, without another graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from kernmill import Tensor, Variable

from ...captures import Jit
from ..arch import Cache, Positions, keeps_states, kept_by
from ..arch.cache import CacheTypes
from ..context_shift import ContextShift
from ..generate import Model
from ..kept_states import KeptStates
from ..layer_templates import LayerTemplates
from ..saved_state import SavedText, read_text, write_text

__all__ = ["Row", "Steps"]

Array = np.ndarray[Any, Any]
_SMALLER = 4  # a piece of a prompt has the chunk's size, or that divided by 4 or 16: padding is at most 3 of 4 rows
_LEAST = 16  # tokens of the smallest piece; fewer are read one by one
_COPIED = 64  # tokens that one call copies from a sequence to another
_FILLED = 0.6  # a piece of the next larger size is used when this much of it would be


class Row(NamedTuple):
    """A token of a sequence, and its position."""

    number: int
    position: int
    token: int


class Steps:
    """The steps of a model over its own cache of `slots` sequences with `context` positions each."""

    def __init__(self, model: Model, slots: int, context: int, chunk: int, cache_type: CacheTypes) -> None:
        self.model, self.slots, self.context = model, slots, context
        self.sizes = tuple(size for size in (chunk, chunk // _SMALLER, chunk // _SMALLER**2) if size >= _LEAST)
        with model.turn():
            model._announce("steps", slots, context, chunk, cache_type)
            self.cache = Cache.empty(kept_by(model.config), context, slots, cache_type)
        announce = partial(model._announce, "move_in_steps")
        self._kept = KeptStates(self.cache, slots, is_needed=keeps_states(model.config), announce=announce)
        self.apart = int(self._kept.is_needed)  # last tokens of a prompt that are read one by one in any case
        self._one = Variable("token", 0, model.architecture.vocabulary - 1)
        self._tokens: dict[int, Jit[..., Tensor]] = {}
        self._pieces: dict[int, Jit[..., Tensor]] = {}
        self._checks = Jit(self._after_each, runs_first=False)
        self._shift: ContextShift | None = None
        self._copied = min(_COPIED, context)
        self._rows = [Variable(name, 0, max(1, slots - 1)) for name in ("source_row", "target_row")]
        self._from = Variable("position", 0, max(1, context - self._copied))
        self._copies: Jit[..., Tensor] = Jit(self._copy_tokens, runs_first=False)

    # --- captured functions
    def _next(self, tokens: Tensor | tuple[Any], positions: Positions) -> Tensor:
        """The logits after one token for each row. Shapes: (rows, vocabulary)."""
        table = tokens if isinstance(tokens, Tensor) else Tensor(tokens[0]).reshape(1, 1)
        return self._logits(self._hidden(table, positions).squeeze(1))

    def _after(self, tokens: Tensor, last: Tensor, positions: Positions) -> Tensor:
        """The logits after token `last` of a piece. Shapes: (1, vocabulary)."""
        hidden = self._hidden(tokens, positions).take_along_dim(last.reshape(1, 1, 1), 1)
        return self._logits(hidden.squeeze(1))

    def _after_each(self, tokens: Tensor, positions: Positions) -> Tensor:
        """The logits after each token of a piece. Shapes: (tokens, vocabulary)."""
        return self._logits(self._hidden(tokens, positions).squeeze(0))

    def _copy_tokens(self, source: Any, target: Any, position: Any) -> Tensor:
        self.cache.copy_tokens(source, target, position, self._copied)
        return Tensor([0])

    def _hidden(self, tokens: Tensor, positions: Positions) -> Tensor:
        return self.model.architecture.forward(tokens, positions, self.cache, LayerTemplates().layer)

    def _logits(self, rows: Tensor) -> Tensor:
        return self.model.architecture.logits(rows.contiguous())

    # --- steps
    def piece_size(self, left: int, room: int) -> int:
        """The size of the next piece of a prompt with this many tokens left, and as many free positions.

        1: they are read one by one, as is the last token before whose state one is kept.
        """
        left -= self.apart
        return next((size for size in self.sizes if left >= _FILLED * size and size <= room), 1)

    def next_tokens(self, rows: Sequence[Row]) -> Array:
        """Compute one token for each of these sequences. Shapes: (rows, vocabulary): the logits after it."""
        count = 1 << (len(rows) - 1).bit_length()
        padded = [*rows, *[rows[0]] * (count - len(rows))]  # twice the same work, and twice the same writes
        ids = [row.token for row in padded]
        with self.model.turn():
            self.model._announce("next_tokens", rows)
            tokens = (self._one.bind(ids[0]),) if count == 1 else Tensor(np.array(ids, np.int32).reshape(-1, 1))
            positions = self._positions([row.number for row in padded], [row.position for row in padded], 1)
            step = self._tokens.setdefault(count, Jit(self._next, runs_first=False))
            logits: Array = step(tokens, positions).numpy()
        return logits[: len(rows)]

    def read(self, number: int, position: int, ids: Sequence[int], size: int) -> Array:
        """Compute tokens of one sequence from a position on. Shapes: (vocabulary,): the logits after the last.

        Padding is written behind the tokens, and overwritten before it is visible.
        """
        with self.model.turn():
            self.model._announce("read", number, position, ids, size)
            tokens = Tensor(np.array([[*ids, *[0] * (size - len(ids))]], np.int32))
            last = Tensor(np.array([len(ids) - 1], np.int32))
            step = self._pieces.setdefault(size, Jit(self._after, runs_first=False))
            positions = self._positions([number], [position], size)
            if self._kept.is_needed:
                positions = positions._replace(counts=last + 1)
            logits: Array = step(tokens, last, positions).numpy()[0]
        return logits

    def copy_prefix(self, source: int, target: int, have: int, want: int) -> None:
        """Copy the keys and values of tokens `have` to `want` of a sequence to another one.

        More may be copied behind them, which is overwritten before it is visible.
        """
        with self.model.turn():
            self.model._announce("copy_prefix", source, target, have, want)
            rows = [row.bind(number) for row, number in zip(self._rows, (source, target), strict=True)]
            for position in range(have, want, self._copied):
                self._copies(*rows, self._from.bind(min(position, self.context - self._copied)))

    def prepare_shift(self) -> None:
        """Check that the keys of the model can move.

        Raises:
            SettingError: they cannot.
        """
        self._shift = self._shift or ContextShift(self.model.architecture, self.cache)

    def shift(self, number: int, keep: int, drop: int) -> None:
        """Drop tokens of a sequence that fills its context, behind the first `keep` ones; the others move."""
        assert self._shift is not None
        with self.model.turn():
            self._shift.shift(number, keep, drop, self.context)

    def rewound(self, number: int, have: int, want: int) -> int:
        """Take a sequence of `have` tokens back to at most `want` of them. Returns how many it has then."""
        if not self._kept.is_needed:
            return min(have, want)
        with self.model.turn():
            return self._kept.rewound(number, have, want)

    def keep(self, number: int, length: int) -> None:
        """Remember the state of a sequence, if the model has states: it can go back to this many tokens."""
        if self._kept.is_needed:
            with self.model.turn():
                self._kept.keep(number, length)

    def forget(self, number: int) -> None:
        """Keep no state of a sequence."""
        self._kept.rewound(number, 1, 0)

    def write(self, number: int, ids: list[int], path: str) -> int:
        """Write the tokens of a sequence and what the cache has of them into a file; return how many they are."""
        with self.model.turn():
            return write_text(self.model, self._saved_text(number, ids), path, "Engine.save_slot")

    def restore(self, number: int, path: str) -> list[int]:
        """Put the text of a file into a sequence; return its tokens."""
        with self.model.turn():
            text = read_text(self.model, self._saved_text(number, []), path, "Engine.restore_slot")
            self._kept.lengths[number] = text.kept
        return text.ids

    def _saved_text(self, number: int, ids: list[int]) -> SavedText:
        return SavedText(self.cache, number, self.slots, self.context, ids, self._kept.lengths[number])

    @property
    def has_states(self) -> bool:
        """True if a sequence has a state, which cannot go back by some tokens."""
        return self._kept.is_needed

    def check(self, number: int, position: int, ids: Sequence[int], size: int) -> Array:
        """Compute up to `size` tokens of one sequence. Shapes: (tokens, vocabulary): the logits after each."""
        with self.model.turn():
            self.model._announce("check", number, position, ids, size)
            tokens = Tensor(np.array([[*ids, *[0] * (size - len(ids))]], np.int32))
            logits: Array = self._checks(tokens, self._positions([number], [position], size)).numpy()
        return logits[: len(ids)]

    def move_in_steps(self, source: int, target: int) -> None:
        """Copy states, as rank 0 did."""
        with self.model.turn():
            self._kept.move(source, target)

    def _positions(self, numbers: Sequence[int], first: Sequence[int], count: int) -> Positions:
        return Positions.of_rows(numbers, first, count, (self.slots, self.context))

    def warm_up(self) -> None:
        """Build the graph of every step. What is written is at positions that no text has reached."""
        count = 1
        while count < 2 * self.slots:
            self.next_tokens([Row(n % self.slots, self.context - 1, 0) for n in range(count)])
            count *= 2
        for size in self.sizes:
            self.read(0, self.context - size, [0] * size, size)
