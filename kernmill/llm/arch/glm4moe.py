"""glm4moe: GLM 4.5 to 4.7."""

from __future__ import annotations

from .architecture import Architecture

__all__ = ["Glm4Moe"]


class Glm4Moe(Architecture):
    """Experts behind a norm of another name, and a shared one; biases; the first layers are dense."""

    mixes = "always"
    gating, is_normed = "sigmoid", False
    before_feed_forward, after_attention = "post_attention_norm", ""
    needs_besides = ("post_attention_norm.weight", "attn_q.bias", "attn_k.bias", "attn_v.bias")
    lacks = ("ffn_norm.weight",)
