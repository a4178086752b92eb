"""arcee: AFM."""

from __future__ import annotations

from kernmill import Tensor

from .llama import Llama

__all__ = ["Arcee"]


class Arcee(Llama):
    """Llama with a feed-forward part without gate: the square of the positive part."""

    has_gate = False
    lacks = ("ffn_gate.weight",)

    def activation(self, x: Tensor) -> Tensor:
        """The square of the positive part."""
        return x.relu().square()
