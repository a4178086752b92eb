"""dots1: dots.llm1."""

from __future__ import annotations

from .qwen3 import Qwen3

__all__ = ["Dots1"]


class Dots1(Qwen3):
    """Qwen 3 with experts and a shared one; the first layers have none."""

    mixes = "always"
    is_normed = False
