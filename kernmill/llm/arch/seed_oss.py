"""seed_oss: Seed-OSS."""

from __future__ import annotations

from .qwen2 import Qwen2

__all__ = ["SeedOss"]


class SeedOss(Qwen2):
    """Qwen 2; the norm before the feed-forward part has a different name in its files."""

    before_feed_forward, after_attention = "post_attention_norm", ""
    needs_besides = (*Qwen2.needs_besides, "post_attention_norm.weight")
    lacks = ("ffn_norm.weight",)
