"""nomic-bert: Nomic Embed 1 and 1.5."""

from __future__ import annotations

from kernmill import Tensor

from .bert import Bert

__all__ = ["NomicBert"]


class NomicBert(Bert):
    """BERT with rope and a gate with SiLU."""

    has_gate = True
    has_positions = False
    lacks = ("attn_norm.weight", "ffn_norm.weight")

    def activation(self, x: Tensor) -> Tensor:
        """SiLU."""
        return x.silu()
