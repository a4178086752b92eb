"""class Cache: keys and values of the tokens so far, each at the place of its position; class Places: which are due."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from kernmill import DType, SettingError, Tensor, Variable, cat, dtypes

from ...quant import BLOCKS
from .config import Config

__all__ = ["CACHE_TYPES", "Cache", "Places"]

_FLOATS = {"f32": dtypes.float32, "f16": dtypes.float16, "bf16": dtypes.bfloat16}
_BLOCK = 32  # values: heads have 64 to 256 of them
_TYPES = {name.lower(): kind for name, kind in BLOCKS.items() if kind.write is not None and kind.values == _BLOCK}
CACHE_TYPES = (*_FLOATS, *_TYPES)


class Places(NamedTuple):
    """Where the new tokens of a step stand: variables of the captured graph, so that one serves every position.

    `first`: of each sequence, the position of its first new token. `end`: behind the last place that any sequence uses.
    """

    first: Sequence[Any]
    end: Any

    @classmethod
    def bound(cls, first: Sequence[int], count: int, capacity: int) -> Places:
        """The arguments of one call for steps of `count` tokens."""
        names, end = _variables(len(first), count, capacity)
        return cls(tuple(v.bind(p) for v, p in zip(names, first, strict=True)), end.bind(max(first) + count))

    def rows(self, table: Tensor, count: int) -> Tensor:
        """What a table has for the new tokens. Shapes: (capacity, ..) -> (sequences, count, ..)."""
        return cat([table[p : p + count].unsqueeze(0) for p in self.first])


@functools.cache
def _variables(sequences: int, count: int, capacity: int) -> tuple[list[Variable], Variable]:
    names = [Variable(f"first{n}", 0, capacity - count) for n in range(sequences)]
    return names, Variable("end", count, capacity)


def _row(type: str, width: int) -> tuple[tuple[int, ...], DType]:
    """Shape and dtype of what is kept of a key or a value."""
    if type not in CACHE_TYPES:
        raise SettingError(f"cache of {type!r}: there is no such type. Choose one of {', '.join(CACHE_TYPES)}.")
    if type in _FLOATS:
        return (width,), _FLOATS[type]
    if width % _BLOCK:
        raise SettingError(
            f"cache of {type}: heads of {width} values are no whole blocks of {_BLOCK}. Choose one of "
            f"{', '.join(_FLOATS)}."
        )
    return (width // _BLOCK, _TYPES[type].size_bytes), dtypes.uint8


class Cache(NamedTuple):
    """Keys and values of each layer: the token at position p of a sequence lies in its place p.

    A tuple of lists, since `jit` finds the tensors of containers and follows what is written to them.

    Shapes: keys[layer] (sequences, kv heads, capacity, head width), values[layer] the same with the value width. Of a
    type with blocks the last axis is [blocks, bytes of a block].
    """

    keys: list[Tensor]
    values: list[Tensor]
    type: str = "f32"

    @classmethod
    def empty(cls, config: Config, capacity: int, sequences: int = 1, type: str = "f32") -> Cache:
        """Zeros: places that were never written are masked, but 0 times nan would be nan.

        Raises:
            SettingError: no such type, or heads that are no whole blocks of it.
        """

        def zeros(width: int) -> Tensor:
            row, dtype = _row(type, width)
            shape = (sequences, config.kv_heads, capacity, *row)
            return Tensor(np.zeros(shape, np.float32 if dtype.is_float else np.uint8), dtype)

        keys, values = (
            [zeros(width) for _ in range(config.layers)] for width in (config.head_width, config.value_width)
        )
        return cls(keys, values, type)

    @staticmethod
    def nbytes(config: Config, capacity: int, sequences: int = 1, type: str = "f32") -> int:
        """What `empty` takes. Raises as it does."""
        rows = (_row(type, width) for width in (config.head_width, config.value_width))
        each = sum(prod(row) * dtype.size_bytes for row, dtype in rows)
        return each * sequences * config.kv_heads * capacity * config.layers

    def write(self, layer: int, places: Places, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put in the keys and values of new tokens; returns those of the layer up to `places.end`.

        Shapes: keys and values (sequences, kv heads, tokens, width); the results the same with `end` tokens.
        Dtypes: the results float32.
        """
        count = keys.shape[2]
        for old, new in ((self.keys[layer], keys), (self.values[layer], values)):
            stored = self._stored(new)
            for n, p in enumerate(places.first):
                old[n : n + 1, :, p : p + count] = stored[n : n + 1]
        keys, values = (self._read(part[layer][:, :, : places.end]) for part in (self.keys, self.values))
        return keys, values

    def _stored(self, x: Tensor) -> Tensor:
        """Floats as the cache keeps them."""
        return x if self.type in _FLOATS else _TYPES[self.type].encode(x.unflatten(-1, (-1, _BLOCK)))

    def _read(self, kept: Tensor) -> Tensor:
        """What is kept as floats."""
        return kept.float() if self.type in _FLOATS else _TYPES[self.type].decode(kept).flatten(-2)
