"""bloom: BLOOM."""

from __future__ import annotations

from kernmill import Tensor

from .alibi import Alibi
from .architecture import Weights
from .cache import Positions
from .config import Config
from .starcoder2 import StarCoder2

__all__ = ["Bloom"]


class Bloom(Alibi, StarCoder2):
    """Layer norms, also of embeddings; scores that fall with the distance."""

    def __init__(self, config: Config, weights: Weights, capacity: int) -> None:
        super().__init__(config, weights, capacity)
        for name in ("token_embd_norm.weight", "token_embd_norm.bias"):
            self.ends[name] = self.vector(name, config.width)

    @classmethod
    def whole_shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """The norm of embeddings."""
        return {f"token_embd_norm.{end}": (c.width,) for end in ("weight", "bias")}

    def embed(self, tokens: Tensor, positions: Positions) -> Tensor:
        """The rows of the tokens, normed."""
        ends = self.ends
        return self.norm(super().embed(tokens, positions), ends["token_embd_norm.weight"], ends["token_embd_norm.bias"])
