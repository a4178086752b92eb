"""minimax-m2: MiniMax M2."""

from __future__ import annotations

from .olmoe import OlmoE

__all__ = ["MiniMaxM2"]


class MiniMaxM2(OlmoE):
    """Experts by the sigmoid of their scores; queries and keys are normed as whole rows."""

    gating, is_normed = "sigmoid", True
