"""nemotron_h: Nemotron H, Nemotron Nano 2 and 3."""

from __future__ import annotations

from kernmill import Tensor

from .architecture import Around
from .cache import Cache, LayerMemory, Positions
from .config import Config
from .mamba2 import Mamba2Layers

__all__ = ["NemotronH", "NemotronHMoe"]


class NemotronH(Mamba2Layers):
    """Each layer is one of three: Mamba 2, attention without rope, or a feed-forward part with a squared ReLU."""

    has_one_part = True
    has_gate = False
    lacks = ("ffn_norm.weight", "ffn_gate.weight")

    @classmethod
    def is_recurrent(cls, c: Config, n: int) -> bool:
        """True in layers without key heads and without a feed-forward part."""
        of = c.of_layer(n)
        return not of.kv_heads and not of.feed_forward

    @classmethod
    def names_in(cls, c: Config, n: int) -> tuple[dict[str, tuple[int, ...]], set[str]]:
        """The tensors of one part."""
        shapes, needed = super().names_in(c, n)
        parts = ("ffn_", "exp_probs_b") if c.of_layer(n).feed_forward else ("attn_",)
        starts = ("attn_norm", *(("ssm_",) if cls.is_recurrent(c, n) else parts))
        return {name: s for name, s in shapes.items() if name.startswith(starts)}, {
            name for name in needed if name.startswith(starts)
        }

    @classmethod
    def kept(cls, c: Config, n: int) -> LayerMemory:
        """Layers with a feed-forward part keep nothing."""
        kept = super().kept(c, n)
        return kept._replace(heads=0) if c.of_layer(n).feed_forward else kept

    def has_rope(self, n: int) -> bool:
        """False."""
        return False

    def activation(self, x: Tensor) -> Tensor:
        """The square of ReLU."""
        return x.relu().square()

    def attention(self, n: int, x: Tensor, positions: Positions, around: Around, cache: Cache) -> Tensor:
        """The only part of a layer, whichever it is."""
        if self.config.of_layer(n).feed_forward:
            return self.feed_forward(n, x)
        return super().attention(n, x, positions, around, cache)


class NemotronHMoe(NemotronH):
    """With experts instead of feed-forward parts."""

    mixes = "always"
    gating = "sigmoid"
