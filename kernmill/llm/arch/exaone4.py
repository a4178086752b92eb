"""exaone4: EXAONE 4."""

from __future__ import annotations

from .architecture import Architecture

__all__ = ["Exaone4"]


class Exaone4(Architecture):
    """Norms only after each part, normed heads; with a window: rope only in layers that have one."""

    needs_besides = (
        "post_attention_norm.weight", "post_ffw_norm.weight", "attn_q_norm.weight", "attn_k_norm.weight",
    )  # fmt: skip
    lacks = ("attn_norm.weight", "ffn_norm.weight")
    period = 4

    def has_rope(self, n: int) -> bool:
        """True in layers with a window, and everywhere in a model without windows."""
        return self.has_window(n) or not self.config.window
