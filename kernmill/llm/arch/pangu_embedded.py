"""pangu-embedded: openPangu Embedded, 1B and 7B."""

from __future__ import annotations

from .qwen2 import Qwen2

__all__ = ["PanguEmbedded"]


class PanguEmbedded(Qwen2):
    """Qwen 2 with a bias after the attention as well."""

    needs_besides = (*Qwen2.needs_besides, "attn_output.bias")
