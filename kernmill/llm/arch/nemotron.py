"""nemotron: Nemotron 4, Minitron."""

from __future__ import annotations

from kernmill import Tensor

from .starcoder2 import StarCoder2

__all__ = ["Nemotron"]


class Nemotron(StarCoder2):
    """Squared ReLU instead of GELU; partial rope. Its files store 1 + w."""

    def activation(self, x: Tensor) -> Tensor:
        """Return the squared ReLU."""
        return x.relu().square()
