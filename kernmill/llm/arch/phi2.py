"""phi2: Phi 1 to 2."""

from __future__ import annotations

from .starcoder2 import StarCoder2

__all__ = ["Phi2"]


class Phi2(StarCoder2):
    """Both parts from the same layer norm of x; partial rope; a bias of the logits."""

    is_parallel = True
    before_feed_forward = "attn_norm"
    needs_besides = ("attn_norm.bias",)
    lacks = ("ffn_gate.weight", "ffn_norm.weight")
