"""eurobert: EuroBERT."""

from __future__ import annotations

from .architecture import Architecture

__all__ = ["EuroBert"]


class EuroBert(Architecture):
    """A llama with rope by halves whose tokens attend to both sides."""

    is_encoder = True
