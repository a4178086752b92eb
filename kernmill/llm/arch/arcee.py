"""arcee: AFM."""

from __future__ import annotations

from kernmill import Tensor

from .llama import Llama

__all__ = ["Arcee"]


class Arcee(Llama):
    """Llama with an ungated feed-forward part: the squared ReLU."""

    has_gate = False
    lacks = ("ffn_gate.weight",)

    def activation(self, x: Tensor) -> Tensor:
        """Return the squared ReLU."""
        return x.relu().square()
