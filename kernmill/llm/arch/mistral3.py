"""mistral3: Ministral 3, Devstral 2 and others of Mistral."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from kernmill import Tensor

from .architecture import Around, Weights
from .cache import Positions
from .config import Config
from .llama import Llama
from .rope import tables

__all__ = ["Mistral3"]


class Mistral3(Llama):
    """Llama with YaRN whose vectors may grow less, and queries that grow with the logarithm of the position."""

    def __init__(self, config: Config, weights: Weights, capacity: int) -> None:
        super().__init__(config, weights, capacity)
        spans = np.floor(np.arange(capacity) / config.rope.trained_context)
        self._growth = Tensor((1 + config.temperature_scale * np.log1p(spans)).astype(np.float32))

    def rope_tables(self, is_local: bool) -> tuple[Tensor, Tensor]:
        """Cosine and sine, divided by the growth that the file's multiplier stands for."""
        rope = self.config.rope
        stretch = math.log(max(1.0, rope.factor)) if rope.scaling == "yarn" else 0.0
        factor = rope.attention_factor / (1 + 0.1 * rope.log_multiplier * stretch)
        return tables(replace(rope, attention_factor=factor), self.capacity, self.rope_factors())

    def _positioned(self, n: int, q: Tensor, k: Tensor, positions: Positions, around: Around) -> tuple[Tensor, Tensor]:
        q, k = super()._positioned(n, q, k, positions, around)
        if not self.config.temperature_scale:
            return q, k
        return q * positions.rows(self._growth, q.shape[2]).unflatten(-1, (1, -1, 1)), k
