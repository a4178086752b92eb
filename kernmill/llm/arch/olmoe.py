"""olmoe: OLMoE."""

from __future__ import annotations

from .architecture import Architecture
from .config import Config

__all__ = ["OlmoE"]


class OlmoE(Architecture):
    """Experts with weights that are not normalized; queries and keys are normed as whole rows."""

    mixes = "always"
    is_normed = False
    needs_besides = ("attn_q_norm.weight", "attn_k_norm.weight")

    @classmethod
    def shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """With norms of whole rows."""
        rows = {"attn_q_norm.weight": (c.heads * c.head_width,), "attn_k_norm.weight": (c.kv_heads * c.head_width,)}
        return super().shapes(c) | rows
