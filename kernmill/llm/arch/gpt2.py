"""gpt2: GPT-2."""

from __future__ import annotations

from kernmill import SettingError, Tensor

from .architecture import Weights
from .cache import Positions
from .config import Config
from .starcoder2 import StarCoder2
from .weight import rows

__all__ = ["Gpt2"]


class Gpt2(StarCoder2):
    """Learned positions instead of rope."""

    can_shift = False

    def __init__(self, config: Config, weights: Weights, capacity: int) -> None:
        super().__init__(config, weights, capacity)
        table = self.needed("position_embd.weight", None, config.width)
        if capacity > table.shape[0]:
            raise SettingError(
                f"Model: capacity={capacity}: must be at most {table.shape[0]}, the number of learned positions of "
                "this model."
            )
        self.ends["position_embd.weight"] = rows(table, Tensor.arange(capacity)).realize()

    @classmethod
    def whole_shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """The table of positions."""
        return {"position_embd.weight": (c.context, c.width)}

    def has_rope(self, n: int) -> bool:
        """False."""
        return False

    def embed(self, tokens: Tensor, positions: Positions) -> Tensor:
        """The rows of the tokens and of their positions."""
        return super().embed(tokens, positions) + positions.rows(self.ends["position_embd.weight"], tokens.shape[1])
