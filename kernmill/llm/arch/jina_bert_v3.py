"""jina-bert-v3: Jina Embeddings 3."""

from __future__ import annotations

from .bert import Bert

__all__ = ["JinaBertV3"]


class JinaBertV3(Bert):
    """BERT with rope."""

    has_positions = False
