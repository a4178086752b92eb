"""jina-bert-v2: Jina Embeddings 2 and the rerankers of version 1."""

from __future__ import annotations

from kernmill import Tensor

from .bert import Bert
from .cache import Positions
from .config import Config
from .slopes import falling

__all__ = ["JinaBertV2"]


class JinaBertV2(Bert):
    """BERT with scores that fall with the distance (ALiBi), and a gate; queries and keys may be normed as rows."""

    has_gate = True
    has_positions = False
    lacks = ("attn_norm.weight", "ffn_norm.weight")
    fused = (*Bert.fused, ("ffn_up", ("ffn_gate", "ffn_up")))

    @classmethod
    def shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """With norms of whole rows, and a second norm of attention."""
        rows = {"attn_q_norm": c.heads * c.head_width, "attn_k_norm": c.kv_heads * c.head_width}
        return super().shapes(c) | {f"{name}.{end}": (n,) for name, n in rows.items() for end in ("weight", "bias")}

    def has_rope(self, n: int) -> bool:
        """False."""
        return False

    def mask(self, positions: Positions, count: int, is_local: bool) -> Tensor:
        """Scores that fall with the distance of two tokens, -inf for padding."""
        mask = super().mask(positions, count, is_local)
        return falling(mask, positions, self.capacity, (self.config.heads, self.config.kv_heads))

    def after_sum(self, n: int, x: Tensor, part: Tensor) -> Tensor:
        """x and attention, normed; some models add x again and norm once more."""
        y = super().after_sum(n, x, part)
        return self.normed(n, x + y, "attn_norm_2") if "attn_norm_2.weight" in self.vectors[n] else y
