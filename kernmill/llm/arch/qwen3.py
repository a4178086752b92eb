"""qwen3: Qwen 3, dense."""

from __future__ import annotations

from kernmill import Tensor

from .architecture import Architecture

__all__ = ["Qwen3"]


class Qwen3(Architecture):
    """Each head of queries and keys is normed before it is rotated."""

    def layer(self, n: int) -> dict[str, Tensor]:
        """With the weights of those norms."""
        names = ("attn_q_norm.weight", "attn_k_norm.weight")
        norms = {name: self.tensor(f"blk.{n}.{name}", self.config.head_width) for name in names}
        return super().layer(n) | norms

    def head_norms(self, n: int, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """One weight for all heads."""
        layer = self.layers[n]
        return self.norm(q, layer["attn_q_norm.weight"]), self.norm(k, layer["attn_k_norm.weight"])
