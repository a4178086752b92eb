"""class Cache: keys and values of the tokens so far, each at the place of its position; class Places: which are due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kernmill import DType, Tensor, Variable, cat, dtypes

from .config import Config

__all__ = ["Cache", "Places"]


class Places(NamedTuple):
    """Where the new tokens of a step stand: variables of the captured graph, so that one serves every position.

    `first`: of each sequence, the position of its first new token. `end`: behind the last place that any sequence uses.
    """

    first: Sequence[Any]
    end: Any

    @classmethod
    def bound(cls, first: Sequence[int], count: int, capacity: int) -> Places:
        """The arguments of one call for steps of `count` tokens."""
        names = [Variable(f"first{n}", 0, capacity - count) for n in range(len(first))]
        end = Variable("end", count, capacity)
        return cls([v.bind(p) for v, p in zip(names, first, strict=True)], end.bind(max(first) + count))

    def rows(self, table: Tensor, count: int) -> Tensor:
        """What a table has for the new tokens. Shapes: (capacity, ..) -> (sequences, count, ..)."""
        return cat([table[p : p + count].unsqueeze(0) for p in self.first])


class Cache(NamedTuple):
    """Keys and values of each layer: the token at position p of a sequence lies in its place p.

    A tuple of lists, since `jit` finds the tensors of containers and follows what is written to them.

    Shapes: keys[layer] (sequences, kv heads, capacity, head width), values[layer] the same with the value width.
    """

    keys: list[Tensor]
    values: list[Tensor]

    @classmethod
    def empty(cls, config: Config, capacity: int, sequences: int = 1, dtype: DType = dtypes.float32) -> Cache:
        """Zeros: places that were never written are masked, but 0 times nan would be nan."""
        keys, values = (
            [
                Tensor(np.zeros((sequences, config.kv_heads, capacity, width), np.float32), dtype)
                for _ in range(config.layers)
            ]
            for width in (config.head_width, config.value_width)
        )
        return cls(keys, values)

    def write(self, layer: int, places: Places, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put in the keys and values of new tokens; returns those of the layer up to `places.end`.

        Shapes: keys and values (sequences, kv heads, tokens, width); the results the same with `end` tokens.
        """
        count = keys.shape[2]
        for old, new in ((self.keys[layer], keys), (self.values[layer], values)):
            for n, p in enumerate(places.first):
                old[n : n + 1, :, p : p + count] = new[n : n + 1]
        return self.keys[layer][:, :, : places.end], self.values[layer][:, :, : places.end]
