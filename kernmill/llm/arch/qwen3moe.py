"""qwen3moe: Qwen 3 MoE."""

from __future__ import annotations

from .qwen3 import Qwen3

__all__ = ["Qwen3Moe"]


class Qwen3Moe(Qwen3):
    """Qwen 3 with experts."""

    mixes = "always"
