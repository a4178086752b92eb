"""exaone: EXAONE 3."""

from __future__ import annotations

from .architecture import Architecture

__all__ = ["Exaone"]


class Exaone(Architecture):
    """Llama, with halves of a head rotated together."""
