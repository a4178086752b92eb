"""baichuan: Baichuan 1 and 2, 7B and 13B."""

from __future__ import annotations

from kernmill import Tensor

from .cache import Positions
from .llama import Llama
from .slopes import falling

__all__ = ["Baichuan"]


class Baichuan(Llama):
    """Llama. The 13B models have ALiBi instead of rope: their files say it by nothing but the number of layers."""

    alibi_layers = 40

    def has_rope(self, n: int) -> bool:
        """False in the 13B models."""
        return self.config.layers != self.alibi_layers

    def mask(self, positions: Positions, count: int, is_local: bool) -> Tensor:
        """Return which tokens are seen, or scores to add."""
        mask, c = super().mask(positions, count, is_local), self.config
        return mask if self.has_rope(0) else falling(mask, positions, self.capacity, (c.heads, c.kv_heads))
