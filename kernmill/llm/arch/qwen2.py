"""qwen2: Qwen 1.5 to 2.5 and what was distilled into them."""

from __future__ import annotations

from kernmill import Tensor

from .architecture import Architecture

__all__ = ["Qwen2"]


class Qwen2(Architecture):
    """Queries, keys and values have biases."""

    def layer(self, n: int) -> dict[str, Tensor]:
        """With the biases, which are needed here."""
        c = self.config
        sizes = (c.heads * c.head_width, c.kv_heads * c.head_width, c.kv_heads * c.value_width)
        for name, size in zip("qkv", sizes, strict=True):
            self.tensor(f"blk.{n}.attn_{name}.bias", size)
        return super().layer(n)
