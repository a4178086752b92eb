"""command-r: Command R, Aya."""

from __future__ import annotations

from kernmill import Tensor

from .llama import Llama

__all__ = ["CommandR"]


class CommandR(Llama):
    """Llama with both parts from the same layer norm of x, and scaled logits."""

    has_layer_norm = True
    is_parallel = True
    before_feed_forward = "attn_norm"
    lacks: tuple[str, ...] = ("ffn_norm.weight",)

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits times `logit_scale`."""
        return super().logits(hidden) * (self.config.logit_scale or 1.0)
