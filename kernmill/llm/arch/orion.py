"""orion: Orion."""

from __future__ import annotations

from .architecture import Architecture

__all__ = ["Orion"]


class Orion(Architecture):
    """Llama with layer norms, and halves of a head rotated together."""

    has_layer_norm = True
    needs_besides = ("attn_norm.bias", "ffn_norm.bias")
