"""internlm2: InternLM 2 and 2.5."""

from __future__ import annotations

from .llama import Llama

__all__ = ["InternLM2"]


class InternLM2(Llama):
    """Llama: its converter splits and orders the rows of queries, keys and values."""
