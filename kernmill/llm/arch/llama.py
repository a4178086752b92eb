"""llama: Llama 1 to 3, Mistral, Mixtral, SmolLM and many others that were converted to it."""

from __future__ import annotations

from .architecture import Architecture

__all__ = ["Llama"]


class Llama(Architecture):
    """Its files order the rows of queries and keys so that neighbours are rotated together. Mixtral has experts."""

    by_halves = False
    mixes = "sometimes"
