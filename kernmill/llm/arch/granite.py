"""granite: Granite 3 and 4, dense."""

from __future__ import annotations

from kernmill import Tensor

from .llama import Llama

__all__ = ["Granite"]


class Granite(Llama):
    """Llama with factors of the embedding, of each part, of the scores, and a divisor of the logits."""

    def has_rope(self, n: int) -> bool:
        """True unless the file says `rope.scaling.finetuned` false."""
        return self.config.is_rotated

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits divided by `logit_scale`."""
        return super().logits(hidden) / (self.config.logit_scale or 1.0)
