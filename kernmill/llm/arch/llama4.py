"""llama4: Llama 4 Scout and Maverick, text only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kernmill import Tensor

from .architecture import Architecture, Around, Weights
from .cache import Positions
from .config import Config

__all__ = ["Llama4"]

_NORMLESS = 128  # experts of the model whose heads have no norm


class Llama4(Architecture):
    """One expert and a shared one; three of four layers see their chunk of the text only and rotate their heads.

    The fourth sees everything, and scales its queries with the logarithm of the position.
    """

    by_halves = False
    mixes = "always"
    gating, is_normed = "sigmoid", False
    weighs_input = True
    period = 4
    chunk = 8192  # tokens
    growth = 0.1  # of queries with the logarithm of the number of chunks before them

    def __init__(self, config: Config, weights: Weights, capacity: int) -> None:
        e = config.experts
        super().__init__(replace(config, experts=replace(e, shared_width=e.shared_width or e.width)), weights, capacity)
        chunks = np.floor((np.arange(capacity) + 1) / self.chunk)
        self._growth = Tensor((1 + self.growth * np.log1p(chunks)).astype(np.float32))

    def has_window(self, n: int) -> bool:
        """True in three of four layers: they see the chunk of a token."""
        return self.has_rope(n)

    def has_rope(self, n: int) -> bool:
        """True in three of four layers."""
        return n % self.period < self.period - 1

    def mask(self, positions: Positions, count: int, is_local: bool) -> Tensor:
        """Build the causal mask; with `is_local` from the start of the chunk of each token."""
        mask = super().mask(positions, count, False)
        if not is_local:
            return mask
        every = Tensor.arange(self.capacity)
        first = positions.rows(every - every % self.chunk, count).unflatten(-1, (1, 1, -1, 1))
        return mask & (every[: positions.end] >= first)

    def _positioned(self, n: int, q: Tensor, k: Tensor, positions: Positions, around: Around) -> tuple[Tensor, Tensor]:
        q, k = super()._positioned(n, q, k, positions, around)
        if not self.is_rotated[n]:
            return q * positions.rows(self._growth, q.shape[2]).unflatten(-1, (1, -1, 1)), k
        return (q, k) if self.config.experts.count == _NORMLESS else (self._unit_norm(q), self._unit_norm(k))

    def _unit_norm(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + self.config.epsilon).rsqrt()
