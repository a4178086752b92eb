"""baichuan: Baichuan 1 and 2, 7B."""

from __future__ import annotations

from kernmill import FormatError

from .architecture import Weights
from .config import Config
from .llama import Llama

__all__ = ["Baichuan"]


class Baichuan(Llama):
    """Llama. The 13B models have ALiBi instead of rope, and are refused."""

    alibi_layers = 40  # of the 13B models: their files say it by nothing else

    def __init__(self, config: Config, weights: Weights, capacity: int) -> None:
        if config.layers == self.alibi_layers:
            raise FormatError("baichuan: models of 40 layers (13B) have ALiBi, which is not supported. Use a 7B model.")
        super().__init__(config, weights, capacity)
