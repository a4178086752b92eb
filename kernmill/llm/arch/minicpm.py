"""minicpm: MiniCPM 1 and 2."""

from __future__ import annotations

from dataclasses import replace

from .architecture import Weights
from .config import Config
from .granite import Granite

__all__ = ["MiniCPM"]

_BASE = 256  # the width of the model whose numbers the larger ones took over


class MiniCPM(Granite):
    """Granite's factors; the first files do not name them."""

    def __init__(self, config: Config, weights: Weights, capacity: int) -> None:
        config = replace(
            config,
            embedding_scale=config.embedding_scale or 12.0,
            residual_scale=config.residual_scale or 1.4 / config.layers**0.5,
            logit_scale=config.logit_scale or config.width / _BASE,
        )
        super().__init__(config, weights, capacity)

    def has_rope(self, n: int) -> bool:
        """True."""
        return True
