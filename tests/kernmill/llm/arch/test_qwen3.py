from __future__ import annotations

from typing import Any


def test_it_computes_what_the_reference_does(tiny: Any) -> None:
    norms = {"attn_q_norm.weight": (8,), "attn_k_norm.weight": (8,)}
    tiny.check(tiny.make("qwen3", {}, norms, attention__key_length=8, attention__value_length=8))
