"""gemma-embedding: EmbeddingGemma."""

from __future__ import annotations

from .gemma3 import Gemma3

__all__ = ["GemmaEmbedding"]


class GemmaEmbedding(Gemma3):
    """Gemma 3 as an encoder: tokens attend to both sides."""

    is_encoder = True
    largest_layers = 0  # no model scales by the width of the embedding
