"""olmo: OLMo 1."""

from __future__ import annotations

from kernmill import Tensor

from .llama import Llama

__all__ = ["Olmo"]


class Olmo(Llama):
    """Llama with layer norms that have no weight; queries, keys and values may be clamped."""

    mixes = "never"
    lacks = ("attn_norm.weight", "ffn_norm.weight")
    output_norm = after_attention = after_feed_forward = ""

    def norm(self, x: Tensor, weight: Tensor | None, bias: Tensor | None = None) -> Tensor:
        """x without its mean, divided by its deviation."""
        x = x - x.mean(-1, keepdim=True)
        return x * (x.square().mean(-1, keepdim=True) + self.config.epsilon).rsqrt()

    def normed(self, n: int, x: Tensor, name: str) -> Tensor:
        """x normed before each part, and nowhere else."""
        return self.norm(x, None) if name in (self.before_attention, self.before_feed_forward) else x

    def queries_keys_values(self, n: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Clamped, if the file says so."""
        q, k, v = super().queries_keys_values(n, x)
        limit = self.config.clamp_kqv
        return (q.clamp(-limit, limit), k.clamp(-limit, limit), v.clamp(-limit, limit)) if limit else (q, k, v)
