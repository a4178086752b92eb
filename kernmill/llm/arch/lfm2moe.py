"""lfm2moe: LFM 2 with experts."""

from __future__ import annotations

from .lfm2 import Lfm2

__all__ = ["Lfm2Moe"]


class Lfm2Moe(Lfm2):
    """Experts behind the first layers, chosen by the sigmoid of their scores."""

    mixes = "always"
    gating = "sigmoid"
