"""nomic-bert-moe: Nomic Embed 2."""

from __future__ import annotations

from .bert import Bert

__all__ = ["NomicBertMoe"]


class NomicBertMoe(Bert):
    """BERT with rope, and experts without a gate in every other layer."""

    has_positions = False
    mixes = "always"
    is_normed = False
