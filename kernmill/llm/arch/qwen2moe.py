"""qwen2moe: Qwen 1.5 MoE and Qwen 2 MoE."""

from __future__ import annotations

from .qwen2 import Qwen2

__all__ = ["Qwen2Moe"]


class Qwen2Moe(Qwen2):
    """Experts with weights that are not normalized, and a shared expert with its own gate."""

    mixes = "always"
    is_normed = False
