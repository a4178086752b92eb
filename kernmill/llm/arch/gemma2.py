"""gemma2: Gemma 2."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kernmill import Tensor

from .architecture import Architecture, Weights
from .cache import Places
from .config import Config

__all__ = ["Gemma2"]


class Gemma2(Architecture):
    """Norms before and after each part, scaled embeddings, a window in every other layer, soft caps by the file.

    Its files hold 1 + w where the paper norms with 1 + w.
    """

    needs_besides: tuple[str, ...] = ("post_attention_norm.weight", "post_ffw_norm.weight")
    period = 2  # of so many layers the last one has no window, unless the file says otherwise
    largest_layers = 46  # of the model whose scale goes by the width of the embedding
    assumed: Mapping[str, Any] = {"window": 4096, "attention_cap": 50.0, "logit_cap": 30.0}  # the first files say none

    def __init__(self, config: Config, weights: Weights, capacity: int) -> None:
        missing = {name: value for name, value in self.assumed.items() if not getattr(config, name)}
        super().__init__(replace(config, **missing), weights, capacity)

    def embed(self, tokens: Tensor, places: Places) -> Tensor:
        """Times the root of the width."""
        return super().embed(tokens, places) * math.sqrt(self.config.width)

    def activation(self, x: Tensor) -> Tensor:
        """GELU by its tanh formula."""
        return x.gelu("tanh")

    def scale(self) -> float:
        """By the width of a head, in the largest model by the embedding's share of a head."""
        c = self.config
        is_largest = c.layers == self.largest_layers
        return c.attention_scale or (c.width / c.heads if is_largest else c.head_width) ** -0.5
