"""nemotron: Nemotron 4, Minitron."""

from __future__ import annotations

from kernmill import Tensor

from .starcoder2 import StarCoder2

__all__ = ["Nemotron"]


class Nemotron(StarCoder2):
    """The square of the positive part in place of GELU; partial rope. Its files hold 1 + w."""

    def activation(self, x: Tensor) -> Tensor:
        """The square of the positive part."""
        return x.relu().square()
