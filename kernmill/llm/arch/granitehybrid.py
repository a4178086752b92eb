"""granitehybrid: Granite 4."""

from __future__ import annotations

from .granite import Granite
from .mamba2 import Mamba2Layers

__all__ = ["GraniteHybrid"]


class GraniteHybrid(Mamba2Layers, Granite):
    """Granite with layers of Mamba 2; dense, or with experts and a shared one."""

    mixes = "sometimes"
