"""ernie4_5-moe: ERNIE 4.5 with experts."""

from __future__ import annotations

from .ernie4_5 import Ernie45

__all__ = ["Ernie45Moe"]


class Ernie45Moe(Ernie45):
    """ERNIE 4.5 with experts in some layers, and shared ones."""

    mixes = "always"
