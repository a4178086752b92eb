"""qwen3: Qwen 3, dense."""

from __future__ import annotations

from .architecture import Architecture

__all__ = ["Qwen3"]


class Qwen3(Architecture):
    """Each head of queries and keys is normed before it is rotated."""

    needs_besides = ("attn_q_norm.weight", "attn_k_norm.weight")
