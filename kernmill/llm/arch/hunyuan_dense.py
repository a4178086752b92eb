"""hunyuan-dense: Hunyuan, dense."""

from __future__ import annotations

from .architecture import Architecture

__all__ = ["HunyuanDense"]


class HunyuanDense(Architecture):
    """Heads are normed after they are rotated."""

    norms_rotated = True
    can_shift = False  # norms are not the same in all directions
    needs_besides = ("attn_q_norm.weight", "attn_k_norm.weight")
