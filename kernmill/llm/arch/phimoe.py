"""phimoe: Phi 3.5 MoE."""

from __future__ import annotations

from .phi3 import Phi3

__all__ = ["PhiMoe"]


class PhiMoe(Phi3):
    """Phi 3 with experts, layer norms and biases."""

    mixes = "always"
    has_layer_norm = True
    needs_besides = ("attn_norm.bias", "ffn_norm.bias", "attn_output.bias")
