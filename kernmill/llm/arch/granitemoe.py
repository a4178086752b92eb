"""granitemoe: Granite 3 MoE."""

from __future__ import annotations

from .granite import Granite

__all__ = ["GraniteMoe"]


class GraniteMoe(Granite):
    """Granite with experts, and a shared one in some files."""

    mixes = "always"
