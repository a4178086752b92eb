"""starcoder2: StarCoder 2."""

from __future__ import annotations

from kernmill import Tensor

from .architecture import Architecture

__all__ = ["StarCoder2"]


class StarCoder2(Architecture):
    """Layer norms, biases everywhere, and an ungated feed-forward part with GELU."""

    has_layer_norm = True
    has_gate = False
    needs_besides: tuple[str, ...] = ("attn_norm.bias", "ffn_norm.bias")
    lacks: tuple[str, ...] = ("ffn_gate.weight",)

    def activation(self, x: Tensor) -> Tensor:
        """GELU by its tanh formula."""
        return x.gelu("tanh")
