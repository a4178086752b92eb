"""ernie4_5: ERNIE 4.5, dense."""

from __future__ import annotations

from .llama import Llama

__all__ = ["Ernie45"]


class Ernie45(Llama):
    """Llama with the embedding as output matrix."""
