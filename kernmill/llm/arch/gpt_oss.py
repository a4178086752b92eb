"""gpt-oss: the open models of OpenAI, 20B and 120B."""

from __future__ import annotations

from kernmill import Tensor

from .architecture import Architecture
from .config import Config

__all__ = ["GptOss"]

_LIMIT, _STEEPNESS = 7.0, 1.702  # of a gate and of what it multiplies; of the sigmoid


class GptOss(Architecture):
    """Experts with biases and a clamped gate; attention sinks; a window in every other layer."""

    mixes = "always"
    gating, is_normed = "chosen", False
    period = 2
    before_feed_forward, after_attention = "post_attention_norm", ""
    needs_besides = (
        "attn_sinks.weight", "post_attention_norm.weight",
        "attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_output.bias",
        "ffn_gate_inp.bias", "ffn_gate_exps.bias", "ffn_up_exps.bias", "ffn_down_exps.bias",
    )  # fmt: skip
    lacks = ("ffn_norm.weight",)

    @classmethod
    def shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """With a sink for each head."""
        return super().shapes(c) | {"attn_sinks.weight": (c.heads,)}

    def _activated(self, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.clamp(None, _LIMIT), up.clamp(-_LIMIT, _LIMIT)
        return gate * (gate * _STEEPNESS).sigmoid() * (up + 1)
