"""modern-bert: ModernBERT, Granite Embedding R2."""

from __future__ import annotations

from dataclasses import replace

from kernmill import Tensor

from .architecture import Architecture, Weights
from .cache import Positions
from .config import Config
from .rope import tables

__all__ = ["ModernBert"]


class ModernBert(Architecture):
    """An encoder with layer norms before each part, and windows with a separate rope in two of three layers."""

    is_encoder = True
    has_layer_norm = True
    period = 3  # the first of this many layers has no window
    ranked = "mean"
    fused = (*Architecture.fused, ("ffn_up", ("ffn_gate", "ffn_up")))

    def __init__(self, config: Config, weights: Weights, capacity: int) -> None:
        super().__init__(config, weights, capacity)
        self.add_end("token_embd_norm.weight", config.width)

    @classmethod
    def names_in(cls, c: Config, n: int) -> tuple[dict[str, tuple[int, ...]], set[str]]:
        """The first layer has no norm before attention."""
        shapes, needed = super().names_in(c, n)
        return shapes, needed if n else needed - {"attn_norm.weight"}

    def has_window(self, n: int) -> bool:
        """True but in the first of three layers."""
        pattern = self.config.window_pattern or self.period
        is_local = pattern[n] if isinstance(pattern, tuple) else n % pattern > 0
        return self.config.window > 0 and is_local

    def rope_tables(self, is_local: bool) -> tuple[Tensor, Tensor]:
        """Layers with a window have a different base."""
        rope = self.config.rope
        return tables(replace(rope, base=rope.local_base or rope.base) if is_local else rope, self.capacity)

    def activation(self, x: Tensor) -> Tensor:
        """GELU by its tanh formula, as in llama.cpp; SiLU in some files."""
        return x.silu() if self.config.activation == "silu" else x.gelu("tanh")

    def rank_activation(self, x: Tensor) -> Tensor:
        """GELU."""
        return x.gelu("tanh")

    def embed(self, tokens: Tensor, positions: Positions) -> Tensor:
        """The rows of the tokens, normed."""
        return self.norm(super().embed(tokens, positions), self.ends["token_embd_norm.weight"])
