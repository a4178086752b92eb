"""xverse: XVERSE."""

from __future__ import annotations

from .llama import Llama

__all__ = ["Xverse"]


class Xverse(Llama):
    """Llama."""
