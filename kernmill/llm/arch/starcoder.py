"""starcoder: StarCoder 1, SantaCoder."""

from __future__ import annotations

from .gpt2 import Gpt2

__all__ = ["StarCoder"]


class StarCoder(Gpt2):
    """GPT-2; all heads share one head of keys and values."""
