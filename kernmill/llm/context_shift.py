"""Context shift: when the cache of a text is full, half of the tokens behind the kept ones are dropped.

The keys and values of the tokens behind them move to the front, and those keys are rotated to their new positions, as
in llama.cpp. What a later layer computed from a dropped token stays in the others, so that logits are not those of the
shorter text; those of a first layer are.
Tests: tests/kernmill/llm/test_context_shift.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernmill import Tensor, Variable
from kernmill.ir import SettingError

from ..captures import Jit
from .arch import Architecture, Cache
from .arch.cache import LayerTurns

__all__ = ["ContextShift", "dropped_tokens", "kept_behind", "kept_tokens"]

_MOVED = 64  # tokens that one call moves
_LEAST = 4  # tokens of a context that are not kept, as in llama.cpp's server


def kept_tokens(keep: int, prompt: int, context: int) -> int:
    """Return how many first tokens of a text stay: -1 keeps the prompt, as far as there is room.

    Raises:
        SettingError: the context has no room behind them.
    """
    most = context - _LEAST
    if keep < -1 or keep > most or most < 0:
        raise SettingError(
            f"context shift: keep={keep} of a context of {context} tokens: must be -1, the prompt, or from 0 to "
            f"{max(0, most)}. Keep fewer tokens, or choose a larger context."
        )
    return min(prompt, most) if keep == -1 else keep


def kept_behind(keep: int | None, ids: Sequence[int], begin: int | None) -> int | None:
    """Return how many tokens of a text are kept: the begin token does not count, as in llama.cpp."""
    return keep + 1 if keep is not None and keep >= 0 and begin is not None and ids[0] == begin else keep


def dropped_tokens(context: int, keep: int) -> int:
    """Return how many tokens behind the kept ones are dropped: half of them."""
    return (context - keep) // 2


class ContextShift:
    """The shift of the sequences of a cache.

    Raises:
        SettingError: keys of this architecture cannot move to other positions.
    """

    def __init__(self, architecture: Architecture, cache: Cache) -> None:
        name = architecture.config.name
        if architecture.config.part is not None:
            raise SettingError("context shift: the model is divided over ranks. Run it on one rank.")
        if cache.states:
            raise SettingError(
                f"context shift: {name} has a state for each text, of which no tokens can be dropped. Leave it out: "
                "choose a larger context."
            )
        if not architecture.can_shift:
            raise SettingError(
                f"context shift: {name} has keys that depend on their positions in another way than by rotation. "
                "Leave it out: choose a larger context."
            )
        self._architecture, self._cache = architecture, cache
        self._moves: dict[int, _Move] = {}

    def shift(self, number: int, keep: int, drop: int, end: int) -> None:
        """Drop `drop` tokens behind the first `keep` ones of a sequence that has `end` of them.

        At least as many must remain behind them.
        """
        count = min(_MOVED, drop)
        move = self._moves.get(count)
        if move is None:
            move = self._moves[count] = _Move(self._architecture, self._cache, count)
        turns = {is_local: _turn_back(tables, drop) for is_local, tables in self._architecture.rope.items()}
        for start in range(keep + drop, end, count):
            # the last piece begins earlier: what it moves again is not overwritten yet, since count <= drop
            move(number, min(start, end - count), drop, turns)


class _Move:
    """The captured move of `count` tokens."""

    def __init__(self, architecture: Architecture, cache: Cache, count: int) -> None:
        self._architecture, self._cache, self._count = architecture, cache, count
        table = next(iter(cache.keys.values()))
        sequences, last = table.shape[0], table.shape[2] - count
        self._variables = [
            Variable(name, 0, most) for name, most in (("row", sequences - 1), ("source", last), ("target", last))
        ]
        self._captured: Jit[..., Tensor] = Jit(self._move_tokens, runs_first=False)

    def __call__(self, number: int, source: int, drop: int, turns: LayerTurns) -> None:
        """Move the tokens from position `source` on by `drop`."""
        places = (number, source, source - drop)
        self._captured(*(one.bind(at) for one, at in zip(self._variables, places, strict=True)), turns)

    def _move_tokens(self, number: Any, source: Any, target: Any, turns: LayerTurns) -> Tensor:
        self._cache.move_tokens(
            number, source, target, self._count, lambda n, keys: self._architecture._turned_keys(n, keys, turns)
        )
        return Tensor([0])


def _turn_back(tables: Sequence[Tensor], count: int) -> tuple[Tensor, Tensor]:
    """The cosine and sine that rotate keys to a position `count` before. Shapes: (size / 2,) each.

    The tables of some models make vectors longer; keys in the cache are already.
    """
    cosine, sine = (table[count].numpy().astype(np.float64) for table in tables)
    length = np.hypot(cosine, sine)
    return Tensor((cosine / length).astype(np.float32)), Tensor((-sine / length).astype(np.float32))
