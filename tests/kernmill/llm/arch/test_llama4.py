"""Llama 4 against NumPy in float64, with chunks of 4 tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill.llm.arch.llama4 import Llama4
from tests.kernmill.llm.arch.test_dense import HEAD, HEADS, W
from tests.kernmill.llm.arch.test_experts import NO_DENSE, SHARED_ONES, WIDE, PlainMixed, mixed

Array = np.ndarray[Any, Any]
CHUNK = 4
SHARED = {name: tuple(WIDE if size != W else W for size in shape) for name, shape in SHARED_ONES.items()}
ROW = mixed(
    SHARED, {"expert_used_count": 1, "block_count": 4, "interleave_moe_layer_step": 2}, pairs=True, gating="sigmoid",
    normed=False, weighs_input=True, dense=frozenset({0, 2}), used=1,
)  # fmt: skip


class PlainChunks(PlainMixed):
    """The first three layers see their chunk; the last one everything, without a rotation."""

    def attention(self, n: int, x: Array) -> Array:
        b, count, is_last = f"blk.{n}.", len(x), n % 4 == 3
        q, k, v = (self.product(x, f"{b}attn_{c}").reshape(count, -1, HEAD) for c in "qkv")
        if is_last:
            q = q * (1 + 0.1 * np.log1p(np.floor((np.arange(count) + 1) / CHUNK)))[:, None, None]
        else:
            q, k = (
                part / np.sqrt((part**2).mean(-1, keepdims=True) + self.epsilon) for part in map(self.rotated, (q, k))
            )
        mixed = np.zeros((count, HEADS, HEAD))
        for t in range(count):
            seen = slice(0 if is_last else t - t % CHUNK, t + 1)
            for h in range(HEADS):
                group = h // (HEADS // k.shape[1])
                mixed[t, h] = self.softmax(k[seen, group] @ q[t, h] / np.sqrt(HEAD), n, h) @ v[seen, group]
        return self.product(mixed.reshape(count, -1), f"{b}attn_output")


def test_logits_are_those_of_numpy(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole text at once in blocks, and one token after a few."""
    monkeypatch.setattr(Llama4, "chunk", CHUNK)
    model, ids = tiny.make("llama4", ROW.extra, ROW.layer | ROW.more, **ROW.keys), tiny.IDS
    for n in range(4):
        for key in ROW.more if n in ROW.dense else NO_DENSE:
            del model.weights[f"blk.{n}.{key}"]
    expected = PlainChunks(model, ROW).logits(ids)
    found = model.model(block=8)
    np.testing.assert_allclose(found.logits(ids).numpy(), expected, rtol=2e-4, atol=3e-5)
    for count in (3, 4, 5, len(ids)):
        np.testing.assert_allclose(found.next_logits(ids[:count]), expected[count - 1], rtol=2e-4, atol=3e-5)
