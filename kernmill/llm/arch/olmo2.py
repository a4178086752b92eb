"""olmo2: OLMo 2."""

from __future__ import annotations

from .architecture import Architecture
from .config import Config

__all__ = ["Olmo2"]


class Olmo2(Architecture):
    """Norms only after each part; queries and keys are normed as whole rows."""

    needs_besides = (
        "post_attention_norm.weight", "post_ffw_norm.weight", "attn_q_norm.weight", "attn_k_norm.weight",
    )  # fmt: skip
    lacks = ("attn_norm.weight", "ffn_norm.weight")

    @classmethod
    def shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """With norms of whole rows."""
        rows = {"attn_q_norm.weight": (c.heads * c.head_width,), "attn_k_norm.weight": (c.kv_heads * c.head_width,)}
        return super().shapes(c) | rows
