"""gemma2: Gemma 2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .architecture import Weights
from .config import Config
from .gemma import Gemma

__all__ = ["Gemma2"]


class Gemma2(Gemma):
    """Gemma with norms before and after each part, a window in every other layer, and soft caps from the file."""

    needs_besides: tuple[str, ...] = ("post_attention_norm.weight", "post_ffw_norm.weight")
    period = 2  # of this many layers the last one has no window, unless the file says otherwise
    largest_layers = 46  # of the model whose scale goes by the width of the embedding
    assumed: Mapping[str, Any] = {"window": 4096, "attention_cap": 50.0, "logit_cap": 30.0}  # the first files say none

    def __init__(self, config: Config, weights: Weights, capacity: int) -> None:
        missing = {name: value for name, value in self.assumed.items() if not getattr(config, name)}
        super().__init__(replace(config, **missing), weights, capacity)

    def scale(self) -> float:
        """By the width of a head, in the largest model by the embedding's share of a head."""
        c = self.config
        is_largest = c.layers == self.largest_layers
        return c.attention_scale or (c.width / c.heads if is_largest else c.head_width) ** -0.5
