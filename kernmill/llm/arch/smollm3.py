"""smollm3: SmolLM 3."""

from __future__ import annotations

from .llama import Llama

__all__ = ["SmolLM3"]


class SmolLM3(Llama):
    """Llama without rope in every fourth layer."""

    def has_rope(self, n: int) -> bool:
        """True but for every fourth layer."""
        return (n + 1) % 4 != 0
