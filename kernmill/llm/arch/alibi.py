"""class Alibi(Architecture): no rope, and scores that fall with the distance."""

from __future__ import annotations

from kernmill import Tensor

from .architecture import Architecture
from .cache import Positions
from .slopes import falling

__all__ = ["Alibi"]


class Alibi(Architecture):
    """A decoder whose tokens know their order by what scores lose."""

    def has_rope(self, n: int) -> bool:
        """False."""
        return False

    def largest_slope(self) -> float:
        """The exponent of the first slope."""
        return 8.0

    def mask(self, positions: Positions, count: int, is_local: bool) -> Tensor:
        """Scores to add, -inf for later tokens."""
        mask = super().mask(positions, count, is_local)
        return falling(mask, positions, self.capacity, (self.config.heads, self.config.kv_heads), self.largest_slope())
