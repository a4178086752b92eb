"""gptneox: GPT-NeoX, Pythia."""

from __future__ import annotations

from .starcoder2 import StarCoder2

__all__ = ["GptNeoX"]


class GptNeoX(StarCoder2):
    """Both parts from x, with a layer norm each, unless the file says `use_parallel_residual` false; partial rope."""

    def is_parallel_in(self, n: int) -> bool:
        """True unless the file says otherwise."""
        return self.config.is_parallel
