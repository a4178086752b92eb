"""codeshell: CodeShell 7B."""

from __future__ import annotations

from .starcoder2 import StarCoder2

__all__ = ["CodeShell"]


class CodeShell(StarCoder2):
    """StarCoder 2, whose matrices all have biases."""

    needs_besides = (*StarCoder2.needs_besides, "attn_output.bias", "ffn_up.bias", "ffn_down.bias")
