"""gemma: Gemma 1."""

from __future__ import annotations

import math

from kernmill import Tensor

from .architecture import Architecture
from .cache import Positions

__all__ = ["Gemma"]


class Gemma(Architecture):
    """Scaled embeddings, and a GELU gate. Its files store 1 + w where the paper norms with 1 + w."""

    def embed(self, tokens: Tensor, positions: Positions) -> Tensor:
        """The embedding times the root of the width."""
        return super().embed(tokens, positions) * math.sqrt(self.config.width)

    def activation(self, x: Tensor) -> Tensor:
        """GELU by its tanh formula."""
        return x.gelu("tanh")
