"""bert: BERT, BGE, E5, MiniLM and others."""

from __future__ import annotations

from kernmill import SettingError, Tensor

from .architecture import Architecture, Around, Weights
from .cache import Cache, Positions
from .config import Config
from .weight import rows

__all__ = ["Bert"]


class Bert(Architecture):
    """An encoder: layer norms after each part, learned positions, an ungated feed-forward part with GELU."""

    is_encoder = True
    has_layer_norm = True
    has_gate = False
    has_positions = True  # a table of them, which limits the length of a text
    output_norm = ""
    before_attention = after_attention = before_feed_forward = after_feed_forward = ""
    needs_besides: tuple[str, ...] = ("attn_output_norm.weight", "layer_output_norm.weight")
    lacks: tuple[str, ...] = ("attn_norm.weight", "ffn_norm.weight", "ffn_gate.weight")

    def __init__(self, config: Config, weights: Weights, capacity: int) -> None:
        super().__init__(config, weights, capacity)
        types = self.found("token_types.weight", None, config.width)
        if types is not None:
            self.ends["token_types.weight"] = rows(types, Tensor([0])).squeeze(0).contiguous().realize()
        for name in ("token_embd_norm.weight", "token_embd_norm.bias"):
            self.add_end(name, config.width)
        if not self.has_positions:
            return
        table = self.needed("position_embd.weight", None, config.width)
        if capacity > table.shape[0]:
            raise SettingError(
                f"Model: capacity={capacity}: must be at most {table.shape[0]}, the number of learned positions of "
                "this model."
            )
        self.ends["position_embd.weight"] = rows(table, Tensor.arange(capacity)).realize()

    @classmethod
    def shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """With the norms after the parts."""
        after = ("attn_output_norm", "layer_output_norm")
        return super().shapes(c) | {f"{name}.{end}": (c.width,) for name in after for end in ("weight", "bias")}

    def activation(self, x: Tensor) -> Tensor:
        """GELU by its tanh formula, as in llama.cpp."""
        return x.gelu("tanh")

    def has_rope(self, n: int) -> bool:
        """True in models without learned positions."""
        return not self.has_positions

    def embed(self, tokens: Tensor, positions: Positions) -> Tensor:
        """Tokens, the first token type, and positions, normed."""
        x = super().embed(tokens, positions)
        if "token_types.weight" in self.ends:
            x = x + self.ends["token_types.weight"]
        if self.has_positions:
            x = x + positions.rows(self.ends["position_embd.weight"], tokens.shape[1])
        return self.norm(x, self.ends.get("token_embd_norm.weight"), self.ends.get("token_embd_norm.bias"))

    def layer(self, n: int, x: Tensor, positions: Positions, around: Around, cache: Cache) -> Tensor:
        """One layer: a norm after each sum."""
        x = self.after_sum(n, x, self.attention(n, x, positions, around, cache))
        return self.normed(n, x + self.feed_forward(n, x), "layer_output_norm")

    def after_sum(self, n: int, x: Tensor, part: Tensor) -> Tensor:
        """x and attention, normed."""
        return self.normed(n, x + part, "attn_output_norm")
