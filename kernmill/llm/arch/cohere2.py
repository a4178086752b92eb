"""cohere2: Command R7B, Command A."""

from __future__ import annotations

from .command_r import CommandR

__all__ = ["Cohere2"]


class Cohere2(CommandR):
    """Command R with windows in three of four layers, and rope only there."""

    period = 4

    def has_rope(self, n: int) -> bool:
        """True in layers with a window."""
        return self.has_window(n)
