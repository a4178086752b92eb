"""gemma3: Gemma 3, text only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kernmill import Tensor

from .gemma2 import Gemma2
from .rope import tables

__all__ = ["Gemma3"]


class Gemma3(Gemma2):
    """Gemma 2 with normed heads, and windows in five of six layers, which have a separate rope."""

    needs_besides = (*Gemma2.needs_besides, "attn_q_norm.weight", "attn_k_norm.weight")
    period = 6
    largest_layers = 62
    assumed: Mapping[str, Any] = {}

    def rope_tables(self, is_local: bool) -> tuple[Tensor, Tensor]:
        """Return the rope of a layer. Layers with a window have a different base and no scaling."""
        rope = self.config.rope
        if not is_local:
            return super().rope_tables(is_local)
        near = replace(rope, base=rope.local_base or 10000.0, scaling="none", attention_factor=1.0)
        return tables(near, self.capacity)
