"""phi3: Phi 3 to 4."""

from __future__ import annotations

from kernmill import Tensor

from .architecture import Architecture

__all__ = ["Phi3"]


class Phi3(Architecture):
    """One product for queries, keys and values, one for gate and up; short and long contexts have their own factors."""

    fused = (*Architecture.fused, ("ffn_up", ("ffn_gate", "ffn_up")))

    def has_window(self, n: int) -> bool:
        """Return True for all layers if the file has a window, as in Transformers; llama.cpp ignores it."""
        return self.config.window > 0

    def rope_factors(self) -> Tensor | None:
        """Return the long factors if the capacity exceeds the original context of the model."""
        kind = "long" if self.capacity > self.config.rope.trained_context else "short"
        return self.factors(f"rope_factors_{kind}.weight")
