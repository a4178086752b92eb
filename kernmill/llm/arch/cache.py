"""class Cache: the keys and values of the tokens so far, at fixed places: one captured graph serves every position."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernmill import DType, Tensor, dtypes, where

from .config import Config

__all__ = ["Cache"]


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

    def write(self, layer: int, position: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put in the keys and values of new tokens, from a position on in each sequence; returns all of the layer's.

        What would lie past the end is dropped.

        Shapes: position (sequences,), keys and values (sequences, kv heads, tokens, width).
        """
        count, capacity = keys.shape[2], self.keys[layer].shape[2]
        offset = Tensor.arange(capacity) - position.unsqueeze(-1)  # which of the new tokens belongs in a place
        is_new = ((offset >= 0) & (offset < count)).unflatten(-1, (1, capacity, 1))
        source = offset.clamp(0, count - 1).unflatten(-1, (1, capacity, 1))
        for old, new in ((self.keys[layer], keys), (self.values[layer], values)):
            spread = new if count == 1 else new.take_along_dim(source, 2)
            old.assign(where(is_new, spread.cast(old.dtype), old))
        return self.keys[layer], self.values[layer]
