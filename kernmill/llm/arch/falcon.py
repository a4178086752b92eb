"""falcon: Falcon 7B and 40B."""

from __future__ import annotations

from .starcoder2 import StarCoder2

__all__ = ["Falcon"]


class Falcon(StarCoder2):
    """Both parts from x: with one shared layer norm, or with one each, if `attn_norm_2` exists as the norm of
    attention."""

    is_parallel = True
    before_feed_forward = "attn_norm"
    needs_besides = ("attn_norm.bias",)
    lacks = ("ffn_gate.weight", "ffn_norm.weight")

    def norms_before(self, n: int) -> tuple[str, str]:
        """The second norm, if the file has one, is that of attention."""
        return "attn_norm_2" if "attn_norm_2.weight" in self.vectors[n] else "attn_norm", "attn_norm"
