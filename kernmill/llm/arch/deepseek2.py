"""deepseek2: DeepSeek V2, V3, R1, Kimi K2, GLM 4.7 Flash and others with latent attention."""

from __future__ import annotations

import math
from dataclasses import replace

from kernmill import FormatError, Tensor, where

from .architecture import Architecture, Around, Weights
from .cache import Cache, LayerTurns, Positions
from .config import Config
from .rope import rotate, tables
from .weight import chosen

__all__ = ["DeepSeek2"]


class DeepSeek2(Architecture):
    """Keys and values of all heads are products with one latent vector of a token, and the cache keeps only that.

    Queries are multiplied with the matrix of keys before they meet the latent vectors, and sums of those with the
    matrix of values behind: the absorbed form. A part of each head is rotated; its keys are the same for all heads.
    """

    by_halves = False
    mixes = "always"
    is_normed = False
    lacks = ("attn_k.weight", "attn_v.weight")
    may_lack = ("attn_q.weight",)
    needs_besides = ("attn_kv_a_mqa.weight", "attn_kv_a_norm.weight", "attn_k_b.weight", "attn_v_b.weight")
    fused = tuple(pair for pair in Architecture.fused if pair[0] != "attn_qkv")

    def __init__(self, config: Config, weights: Weights, capacity: int) -> None:
        latent = config.latent
        if latent is None:
            raise FormatError(f"the file has no {config.name}.attention.kv_lora_rank, which is required.")
        if config.kv_heads != 1 or not latent.key_width:
            raise FormatError(
                f"{config.name}.attention.head_count_kv is {config.kv_heads}, and key_length_mla is "
                f"{latent.key_width}: the file holds keys and values of each head. Convert the model again, with a "
                "newer converter."
            )
        rotated = config.rope.size
        widths = (latent.rank + rotated, latent.rank)
        if (config.head_width, config.value_width) != widths or not 0 < rotated < latent.key_width:
            raise FormatError(
                f"{config.name}: attention.key_length {config.head_width}, attention.value_length "
                f"{config.value_width}, kv_lora_rank {latent.rank}, key_length_mla {latent.key_width} and "
                f"rope.dimension_count {rotated} are inconsistent."
            )
        super().__init__(config, weights, capacity)

    @classmethod
    def shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """With the matrices of latent vectors."""
        latent = c.latent
        assert latent is not None
        rotated = c.rope.size
        queries = c.heads * latent.key_width
        of_queries = {
            "attn_q_a.weight": (latent.query_rank, c.width),
            "attn_q_a_norm.weight": (latent.query_rank,),
            "attn_q_b.weight": (queries, latent.query_rank),
        }
        return (
            super().shapes(c)
            | (of_queries if latent.query_rank else {})
            | {
                "attn_q.weight": (queries, c.width),
                "attn_kv_a_mqa.weight": (latent.rank + rotated, c.width),
                "attn_kv_a_norm.weight": (latent.rank,),
                "attn_k_b.weight": (c.heads, latent.rank, latent.key_width - rotated),
                "attn_v_b.weight": (c.heads, latent.value_width, latent.rank),
                "attn_output.weight": (c.width, c.heads * latent.value_width),
            }
        )

    @classmethod
    def names_in(cls, c: Config, n: int) -> tuple[dict[str, tuple[int, ...]], set[str]]:
        """Queries are one product or two."""
        shapes, needed = super().names_in(c, n)
        assert c.latent is not None
        ranked = {"attn_q_a.weight", "attn_q_a_norm.weight", "attn_q_b.weight"}
        return shapes, needed | (ranked if c.latent.query_rank else {"attn_q.weight"})

    def rope_tables(self, is_local: bool) -> tuple[Tensor, Tensor]:
        """Tables whose vectors do not grow: the scores do."""
        rope = self.config.rope
        growth = 1 + 0.1 * math.log(max(1.0, rope.factor)) if rope.scaling == "yarn" else 1.0
        return tables(replace(rope, attention_factor=1 / growth), self.capacity, self.rope_factors())

    def scale(self) -> float:
        """By the width of a head, and by the square of what YaRN lets vectors grow."""
        c = self.config
        assert c.latent is not None
        stretch = math.log(max(1.0, c.rope.factor)) if c.rope.scaling == "yarn" else 0.0
        growth = 1 + c.rope.log_multiplier * stretch
        return growth * growth / math.sqrt(c.latent.key_width)

    def attention(self, n: int, x: Tensor, positions: Positions, around: Around, cache: Cache) -> Tensor:
        """Each token looks at the latent vectors of those before it."""
        c, (cosine, sine, mask) = self.config, around
        assert c.latent is not None
        rank, sequences, count = c.latent.rank, x.shape[0], x.shape[1]
        if c.latent.query_rank:
            q = self.product(
                n, self.normed(n, self.product(n, x, "attn_q_a"), "attn_q_a_norm").contiguous(), "attn_q_b"
            )
        else:
            q = self.product(n, x, "attn_q")
        q = q.unflatten(-1, (c.heads, -1)).transpose(1, 2)  # (sequences, heads, tokens, key width)
        plain = c.latent.key_width - c.rope.size
        both = self.product(n, x, "attn_kv_a_mqa").unsqueeze(1)
        latent = self.normed(n, both[..., :rank], "attn_kv_a_norm").contiguous()
        q_rotated, k_rotated = (
            rotate(part, cosine, sine, by_halves=self.by_halves) for part in (q[..., plain:], both[..., rank:])
        )
        absorbed = self._by_head(n, q[..., :plain], "attn_k_b")
        keys, values = cache.write(n, positions, latent.cat(k_rotated, axis=-1).contiguous(), latent)
        scores = absorbed.matmul(keys[..., :rank].mT) + q_rotated.contiguous().matmul(keys[..., rank:].mT)
        shares = where(mask.squeeze(1), scores * self.scale(), -math.inf).softmax(-1)
        mixed = self._by_head(n, shares.matmul(values), "attn_v_b")
        return self.product(n, mixed.transpose(1, 2).reshape(sequences, count, -1).contiguous(), "attn_output")

    def _turned_keys(self, n: int, keys: Tensor, turns: LayerTurns) -> Tensor:
        """Only what follows the latent vector is rotated."""
        assert self.config.latent is not None
        rank = self.config.latent.rank
        return keys[..., :rank].cat(super()._turned_keys(n, keys[..., rank:], turns), axis=-1)

    def _by_head(self, n: int, x: Tensor, name: str) -> Tensor:
        """Each head with its own matrix. Shapes: (sequences, heads, tokens, in) -> (sequences, heads, tokens, out)."""
        sequences, heads, tokens, _ = x.shape
        rows = x.transpose(0, 1).reshape(heads, sequences * tokens, -1).contiguous()
        made = chosen(rows, self.matrices[n][f"{name}.weight"], Tensor.arange(heads)).contiguous()
        return made.reshape(heads, sequences, tokens, -1).transpose(0, 1).contiguous()
