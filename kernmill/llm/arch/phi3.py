"""phi3: Phi 3 to 4."""

from __future__ import annotations

from kernmill import Tensor

from .architecture import Architecture
from .config import Config
from .weight import parts_of

__all__ = ["Phi3"]


class Phi3(Architecture):
    """One product for queries, keys and values, one for gate and up; short and long contexts have their own factors."""

    needs = ("attn_qkv.weight",)
    same_x = ()  # files have one matrix for each x

    @classmethod
    def shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """With the joined products."""
        rows = (c.heads + c.kv_heads) * c.head_width + c.kv_heads * c.value_width
        return super().shapes(c) | {
            "attn_qkv.weight": (rows, c.width),
            "attn_qkv.bias": (rows,),
            "ffn_up.weight": (2 * c.feed_forward, c.width),
            "ffn_up.bias": (2 * c.feed_forward,),
        }

    def has_window(self, n: int) -> bool:
        """All layers, where the file has a window, as in Transformers; llama.cpp reads such files without one."""
        return self.config.window > 0

    def rope_factors(self) -> Tensor | None:
        """Long ones where there is room for more tokens than the model was first trained on."""
        kind = "long" if self.capacity > self.config.rope.trained_context else "short"
        return self.factors(f"rope_factors_{kind}.weight")

    def queries_keys_values(self, n: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The parts of one product."""
        c = self.config
        sizes = c.heads * c.head_width, c.kv_heads * c.head_width, c.kv_heads * c.value_width
        q, k, v = parts_of(self.product(n, x, "attn_qkv"), sizes)
        return q, k, v

    def gate_and_up(self, n: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """The parts of one product: the gate comes first."""
        gate, up = parts_of(self.product(n, x, "ffn_up"), [self.config.feed_forward] * 2)
        return gate, up
