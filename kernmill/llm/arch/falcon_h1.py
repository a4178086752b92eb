"""falcon-h1: Falcon H1."""

from __future__ import annotations

from kernmill import Tensor

from .architecture import Around
from .cache import Cache, LayerMemory, Positions
from .config import Config
from .mamba2 import Mamba2Layers

__all__ = ["FalconH1"]


class FalconH1(Mamba2Layers):
    """Attention and Mamba 2 in each layer, from the same x."""

    needs_besides = ("ffn_norm", *(name for name in Mamba2Layers.needs_recurrent if name != "ssm_norm.weight"))
    has_either = False
    lacks = ("ffn_norm.weight",)

    @classmethod
    def shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """The norm before the feed-forward part is named without `weight` in these files."""
        shapes = super().shapes(c)
        return shapes | {"ffn_norm": shapes.pop("ffn_norm.weight")}

    def add_layer(self, n: int) -> None:
        """Take the tensors, under the usual names."""
        super().add_layer(n)
        self.vectors[n]["ffn_norm.weight"] = self.vectors[n].pop("ffn_norm")

    @classmethod
    def is_recurrent(cls, c: Config, n: int) -> bool:
        """False: no layer is recurrent only."""
        return False

    @classmethod
    def kept(cls, c: Config, n: int) -> LayerMemory:
        """Keys and values, and states."""
        return super().kept(c, n)._replace(states=cls.state_shapes(c))

    def attention(self, n: int, x: Tensor, positions: Positions, around: Around, cache: Cache) -> Tensor:
        """The sum of both parts."""
        return super().attention(n, x, positions, around, cache) + self.recurrent(n, x, positions, cache)
