"""stablelm: StableLM 2 and 3B."""

from __future__ import annotations

from .architecture import Architecture

__all__ = ["StableLM"]


class StableLM(Architecture):
    """Layer norms; a layer without `ffn_norm` computes both parts from the same norm of x."""

    has_layer_norm = True
    needs_besides = ("attn_norm.bias",)
    may_lack = ("ffn_norm.weight",)

    def is_parallel_in(self, n: int) -> bool:
        """True if the layer has one norm."""
        return "ffn_norm.weight" not in self.vectors[n]

    def norms_before(self, n: int) -> tuple[str, str]:
        """The only norm twice, or two norms."""
        return "attn_norm", "attn_norm" if self.is_parallel_in(n) else "ffn_norm"
