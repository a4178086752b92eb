"""qwen2: Qwen 1.5 to 2.5 and models distilled into them."""

from __future__ import annotations

from .architecture import Architecture

__all__ = ["Qwen2"]


class Qwen2(Architecture):
    """Queries, keys and values have biases."""

    needs_besides: tuple[str, ...] = ("attn_q.bias", "attn_k.bias", "attn_v.bias")
