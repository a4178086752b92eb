"""class Cache: the keys and values of the tokens so far, at fixed places: one captured graph serves every position."""

from __future__ import annotations

from typing import NamedTuple

from kernmill import DType, Tensor, dtypes, where

from .config import Config

__all__ = ["Cache"]


class Cache(NamedTuple):
    """Keys and values of each layer: the token at position p lies in place p.

    A tuple of lists, since `jit` finds the tensors of containers and follows what is written to them.

    Shapes: keys[layer] (kv heads, capacity, head width), values[layer] (kv heads, capacity, value width).
    """

    keys: list[Tensor]
    values: list[Tensor]

    @classmethod
    def empty(cls, config: Config, capacity: int, dtype: DType = dtypes.float32) -> Cache:
        """Zeros: places that were never written are masked, but 0 times nan would be nan."""
        sizes = [(config.kv_heads, capacity, width) for width in (config.head_width, config.value_width)]
        keys, values = (
            [Tensor.zeros(size, dtype=dtype).clone().realize() for _ in range(config.layers)] for size in sizes
        )
        return cls(keys, values)

    @property
    def capacity(self) -> int:
        """How many tokens fit."""
        return self.keys[0].shape[1]

    def write(self, layer: int, position: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put in the keys and values of new tokens from a position on; returns all of the layer's.

        What would lie past the end is dropped.

        Shapes: position (), keys and values (kv heads, tokens, width).
        """
        count = keys.shape[1]
        offset = Tensor.arange(self.capacity) - position  # which of the new tokens belongs in a place
        is_new = ((offset >= 0) & (offset < count)).unsqueeze(-1)
        source = offset.clamp(0, count - 1)
        for old, new in ((self.keys[layer], keys), (self.values[layer], values)):
            spread = new if count == 1 else new.index_select(1, source)
            old.assign(where(is_new, spread.cast(old.dtype), old))
        return self.keys[layer], self.values[layer]
