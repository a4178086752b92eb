"""olmo2: OLMo 2 and 3."""

from __future__ import annotations

from dataclasses import replace

from kernmill import Tensor

from .architecture import Architecture
from .config import Config
from .rope import tables

__all__ = ["Olmo2"]


class Olmo2(Architecture):
    """Norms only after each part; queries and keys are normed as whole rows. OLMo 3 has windows, with a plain rope."""

    period = 4
    needs_besides = (
        "post_attention_norm.weight", "post_ffw_norm.weight", "attn_q_norm.weight", "attn_k_norm.weight",
    )  # fmt: skip
    lacks = ("attn_norm.weight", "ffn_norm.weight")

    @classmethod
    def shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """With norms of whole rows."""
        rows = {"attn_q_norm.weight": (c.heads * c.head_width,), "attn_k_norm.weight": (c.kv_heads * c.head_width,)}
        return super().shapes(c) | rows

    def rope_tables(self, is_local: bool) -> tuple[Tensor, Tensor]:
        """Layers with a window have no scaling."""
        rope = self.config.rope
        if not is_local:
            return super().rope_tables(is_local)
        plain = replace(rope, base=rope.local_base or rope.base, scaling="none", attention_factor=1.0)
        return tables(plain, self.capacity)
