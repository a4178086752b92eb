"""gemma3: Gemma 3, text only."""

from __future__ import annotations

import math
from dataclasses import replace

from kernmill import Tensor

from .architecture import Weights
from .cache import Cache
from .config import Config
from .qwen3 import Qwen3
from .rope import tables

__all__ = ["Gemma3"]

LARGEST_LAYERS = 62  # of the model whose scale goes by the width of the embedding


class Gemma3(Qwen3):
    """Norms before and after each part, scaled embeddings, and windows in five of six layers with a rope of their own.

    Its files hold 1 + w where the paper norms with 1 + w.
    """

    def __init__(self, config: Config, weights: Weights, capacity: int) -> None:
        pattern = 6 if config.window_pattern == 1 else config.window_pattern
        super().__init__(replace(config, window_pattern=pattern), weights, capacity)

    def layer(self, n: int) -> dict[str, Tensor]:
        """With the norms after attention and feed-forward part."""
        names = ("post_attention_norm.weight", "post_ffw_norm.weight")
        norms = {name: self.tensor(f"blk.{n}.{name}", self.config.width) for name in names}
        return super().layer(n) | norms

    def has_window(self, n: int) -> bool:
        """All layers but each sixth, or what the file says."""
        pattern = self.config.window_pattern
        if not self.config.window:
            return False
        return pattern[n] if isinstance(pattern, tuple) else n % pattern < pattern - 1

    def rope_tables(self, is_local: bool) -> tuple[Tensor, Tensor]:
        """Layers with a window have a base of their own and are not stretched."""
        rope = self.config.rope
        if not is_local:
            return super().rope_tables(is_local)
        return tables(
            replace(rope, base=rope.local_base or 10000.0, scaling="none", attention_factor=1.0), self.capacity
        )

    def embed(self, tokens: Tensor) -> Tensor:
        """Times the root of the width."""
        return super().embed(tokens) * math.sqrt(self.config.width)

    def activation(self, x: Tensor) -> Tensor:
        """GELU by its tanh formula."""
        return x.gelu("tanh")

    def scale(self) -> float:
        """By the width of a head, in the 27B model by the embedding's share of a head."""
        c = self.config
        is_largest = c.layers == LARGEST_LAYERS
        return c.attention_scale or (c.width / c.heads if is_largest else c.head_width) ** -0.5

    def block(self, n: int, x: Tensor, position: Tensor, around: tuple[Tensor, Tensor, Tensor], cache: Cache) -> Tensor:
        """Each part is normed before it is added."""
        layer = self.layers[n]
        part = self.attention(n, self.norm(x, layer["attn_norm.weight"]), position, around, cache)
        x = x + self.norm(part, layer["post_attention_norm.weight"])
        part = self.feed_forward(n, self.norm(x, layer["ffn_norm.weight"]))
        return x + self.norm(part, layer["post_ffw_norm.weight"])
