"""Latent attention against NumPy in float64, which makes the keys and values of every head: the expanded form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import Context, FormatError
from tests.kernmill.llm.arch.test_dense import HEADS, W
from tests.kernmill.llm.arch.test_experts import BIASED, NO_DENSE, SHARED_KEY, SHARED_ONES, SIGMOID, PlainMixed, mixed

Array = np.ndarray[Any, Any]
RANK, ROTATED, PLAIN, VALUE, QUERY_RANK = 8, 4, 6, 5, 10
KEYS: dict[str, Any] = {
    "attention__kv_lora_rank": RANK, "attention__key_length": RANK + ROTATED, "attention__value_length": RANK,
    "attention__head_count_kv": 1, "attention__key_length_mla": PLAIN + ROTATED, "attention__value_length_mla": VALUE,
    "rope__dimension_count": ROTATED,
}  # fmt: skip
LAYER: dict[str, tuple[int, ...]] = {
    "attn_q.weight": (HEADS * (PLAIN + ROTATED), W), "attn_k.weight": (), "attn_v.weight": (),
    "attn_kv_a_mqa.weight": (RANK + ROTATED, W), "attn_kv_a_norm.weight": (RANK,),
    "attn_k_b.weight": (HEADS, RANK, PLAIN), "attn_v_b.weight": (HEADS, VALUE, RANK),
    "attn_output.weight": (W, HEADS * VALUE),
}  # fmt: skip
OF_QUERIES: dict[str, tuple[int, ...]] = {
    "attn_q.weight": (), "attn_q_a.weight": (QUERY_RANK, W), "attn_q_a_norm.weight": (QUERY_RANK,),
    "attn_q_b.weight": (HEADS * (PLAIN + ROTATED), QUERY_RANK),
}  # fmt: skip
YARN = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 32,
        "rope__scaling__yarn_log_multiplier": 0.1}  # fmt: skip
ROWS = {
    "V2 Lite": mixed(SHARED_ONES, KEYS | SHARED_KEY | {"leading_dense_block_count": 1}, layer=LAYER, pairs=True,
                     normed=False, dense=frozenset({0})),
    "V3": mixed(
        SHARED_ONES | BIASED,
        KEYS | YARN | SIGMOID | SHARED_KEY | {"leading_dense_block_count": 1, "attention__q_lora_rank": QUERY_RANK},
        layer=LAYER | OF_QUERIES, pairs=True, gating="sigmoid", scale=1.5, dense=frozenset({0}),
    ),
}  # fmt: skip


class PlainLatent(PlainMixed):
    """Keys and values of each head, and one token at a time."""

    def rotated(self, x: Array) -> Array:
        """With the frequencies of YaRN, and vectors that do not grow."""
        half, out = ROTATED // 2, x.copy()
        speed = 100.0 ** (-np.arange(half) / half)
        if self.tiny.key("rope.scaling.type") == "yarn":
            low, high = (ROTATED * np.log(32 / (t * 2 * np.pi)) / (2 * np.log(100.0)) for t in (32.0, 1.0))
            low, high = max(0.0, np.floor(low)), min(ROTATED - 1.0, np.ceil(high))
            part = np.clip((np.arange(half) - low) / max(0.001, high - low), 0, 1)
            speed = speed * (1 - part) + speed / 4 * part
        z = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * np.outer(np.arange(len(x)), speed))[:, None]
        out[..., ::2], out[..., 1::2] = z.real, z.imag
        return out

    def attention(self, n: int, x: Array) -> Array:
        b, count = f"blk.{n}.", len(x)
        if f"{b}attn_q_a.weight" in self.w:
            q = self.product(self.norm(self.product(x, f"{b}attn_q_a"), f"{b}attn_q_a_norm"), f"{b}attn_q_b")
        else:
            q = self.product(x, f"{b}attn_q")
        q = q.reshape(count, HEADS, -1)
        both = self.product(x, f"{b}attn_kv_a_mqa")
        latent = self.norm(both[:, :RANK], f"{b}attn_kv_a_norm")
        shared, q_rotated = self.rotated(both[:, None, RANK:])[:, 0], self.rotated(q[..., PLAIN:])
        growth = 1 + 0.1 * np.log(4.0) if self.tiny.key("rope.scaling.type") == "yarn" else 1.0
        mixed = np.zeros((count, HEADS, VALUE))
        for h in range(HEADS):
            keys, values = latent @ self.w[f"{b}attn_k_b.weight"][h], latent @ self.w[f"{b}attn_v_b.weight"][h].T
            for t in range(count):
                scores = keys[: t + 1] @ q[t, h, :PLAIN] + shared[: t + 1] @ q_rotated[t, h]
                mixed[t, h] = self.softmax(scores * growth**2 / np.sqrt(PLAIN + ROTATED), n, h) @ values[: t + 1]
        return self.product(mixed.reshape(count, -1), f"{b}attn_output")


def made(tiny: Any, name: str) -> Any:
    row = ROWS[name]
    model = tiny.make("deepseek2", row.extra, row.layer | row.more, **row.keys)
    for n in range(2):
        for key in row.more if n in row.dense else NO_DENSE:
            del model.weights[f"blk.{n}.{key}"]
    return model


@pytest.mark.parametrize("name", ROWS)
def test_logits_are_those_of_numpy(tiny: Any, name: str) -> None:
    """The whole text at once in blocks, and one token after a few; two sequences at once."""
    model, ids = made(tiny, name), tiny.IDS
    expected = PlainLatent(model, ROWS[name]).logits(ids)
    found = model.model(block=8)
    np.testing.assert_allclose(found.logits(ids).numpy(), expected, rtol=2e-4, atol=3e-5)
    for count in (3, 4, len(ids)):
        np.testing.assert_allclose(found.next_logits(ids[:count]), expected[count - 1], rtol=2e-4, atol=3e-5)
    first = next(iter(model.model(sequences=2).generate_all([ids[:5], ids[:7]], max_tokens=1)))
    assert first == [expected[4].argmax(), expected[6].argmax()]


def test_one_on_opencl(tiny: Any, opencl: str) -> None:
    model, ids = made(tiny, "V3"), tiny.IDS[:5]
    with Context(DEVICE=opencl):
        found = model.model(capacity=8, block=8).logits(ids).numpy()
    np.testing.assert_allclose(found, PlainLatent(model, ROWS["V3"]).logits(ids), rtol=2e-4, atol=3e-5)


FAULTS = [
    ("attention.kv_lora_rank", None, "the file has no deepseek2.attention.kv_lora_rank, which is required."),
    ("attention.head_count_kv", 4,
     "deepseek2.attention.head_count_kv is 4, and key_length_mla is 10: the file holds keys and values of each head. "
     "Convert the model again, with a newer converter."),
    ("attention.key_length", 14,
     "deepseek2: attention.key_length 14, attention.value_length 8, kv_lora_rank 8, key_length_mla 10 and "
     "rope.dimension_count 4 are inconsistent."),
    ("attention.kv_lora_rank", 7,
     "deepseek2: attention.key_length 12, attention.value_length 8, kv_lora_rank 7, key_length_mla 10 and "
     "rope.dimension_count 4 are inconsistent."),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "message"), FAULTS, ids=["missing", "old", "length", "rank"])
def test_sizes_that_do_not_fit(tiny: Any, key: str, value: Any, message: str) -> None:
    model = made(tiny, "V3")
    model.metadata[f"deepseek2.{key}"] = value
    with pytest.raises(FormatError) as caught:
        model.model()
    assert str(caught.value) == message
