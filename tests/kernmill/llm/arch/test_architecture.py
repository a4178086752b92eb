from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import Context, FormatError, Tensor
from kernmill.llm.arch import ARCHITECTURES

SMALL = {
    "embedding_length": 4,
    "block_count": 1,
    "feed_forward_length": 4,
    "attention__head_count": 2,
    "attention__head_count_kv": 1,
}


@pytest.mark.parametrize("device", ["LLVM", "PYTHON"])
def test_every_device_computes_the_same(tiny: Any, device: str) -> None:
    made = tiny.make("llama", {}, {}, **SMALL)
    with Context(DEVICE=device):
        logits = made.model(capacity=4, block=2).logits([3, 1, 4])
        np.testing.assert_allclose(logits.numpy(), tiny.Reference(made).logits([3, 1, 4]), rtol=2e-4, atol=2e-5)


def test_a_padded_block_at_the_end_of_the_cache(tiny: Any) -> None:
    made = tiny.make("llama", {}, {}, **SMALL)
    ids = [3, 1, 4, 1, 5]
    model = made.model(capacity=5, block=3)
    np.testing.assert_allclose(model.logits(ids).numpy(), tiny.Reference(made).logits(ids), rtol=2e-4, atol=2e-5)


JOINED: dict[str, tuple[int, ...]] = {f"{name}.weight": () for name in ("attn_q", "attn_k", "attn_v", "ffn_gate")}
JOINED |= {"attn_qkv.weight": (48, 24), "ffn_up.weight": (40, 24)}


@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("block", [32, 47])
def test_loops_over_keys_end_with_the_mask(tiny: Any, window: int, block: int) -> None:
    """At the beginning, in the middle and at the end of the cache."""
    keys = {"attention__sliding_window": window, "block_count": 1, "context_length": 100}
    made = tiny.make("phi3" if window else "llama", {}, JOINED if window else {}, **keys)
    ids = [n * 5 % 17 for n in range(100)]
    layers = [tiny.Layer(tiny.Reference(made).layers[0].frequencies, window=window)]
    expected = tiny.Reference(made, layers).logits(ids)
    np.testing.assert_allclose(made.model(100, block).logits(ids).numpy(), expected, rtol=5e-4, atol=5e-5)


LATENT = {
    "attention__kv_lora_rank": 8, "attention__key_length": 10, "attention__value_length": 8,
    "attention__head_count_kv": 1, "attention__key_length_mla": 6, "rope__dimension_count": 2,
}  # fmt: skip


def test_a_tensor_of_another_shape_is_named(tiny: Any) -> None:
    with pytest.raises(FormatError) as caught:
        tiny.make("llama", {}, {"ffn_up.weight": (20, 23)}).model()
    assert str(caught.value) == (
        "blk.0.ffn_up.weight has shape (20, 23), and a llama model of these sizes needs (20, 24). "
        "The file's metadata and tensors are inconsistent: embedding_length 24, feed_forward_length 20, "
        "attention.head_count 4, attention.head_count_kv 2, attention.key_length 6, attention.value_length 6."
    )
    with pytest.raises(FormatError, match=r"^token_embd\.weight has shape \(5,\), and .* needs \(any, 24\)\."):
        tiny.make("llama", {"token_embd.weight": (5,)}, {}).model()


def test_weights_in_half_precision(tiny: Any) -> None:
    made = tiny.make("llama", {}, {})
    expected = made.model().logits(tiny.IDS).numpy()
    for name, weight in made.weights.items():
        if weight.ndim > 1:
            made.weights[name] = weight.astype(np.float16)
    tensors = {name: Tensor(w if w.dtype == np.float16 else w.astype(np.float32)) for name, w in made.weights.items()}
    from kernmill.llm.arch import Config
    from kernmill.llm.generate import Model

    logits = Model(Config.of(made.metadata), tensors.get, capacity=16, block=4).logits(tiny.IDS).numpy()
    np.testing.assert_allclose(logits, expected, atol=0.02)
    assert np.abs(logits - expected).max() > 0


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "gemma3"])
def test_fused_queries_keys_and_values_are_split(tiny: Any, arch: str) -> None:
    """M8: "the file has no tensor blk.0.attn_q.weight". The converter's --fuse-qkv stacks the rows of q, k and v."""
    layer: dict[str, tuple[int, ...]] = {}
    if arch == "qwen2":
        layer = {"attn_q.bias": (24,), "attn_k.bias": (12,), "attn_v.bias": (12,)}
    if arch in ("qwen3", "gemma3"):
        layer = {"attn_q_norm.weight": (6,), "attn_k_norm.weight": (6,)}
    if arch == "gemma3":
        layer |= {"post_attention_norm.weight": (24,), "post_ffw_norm.weight": (24,)}
    apart = tiny.make(arch, {}, layer)
    fused = tiny.Tiny(apart.metadata, {name: w for name, w in apart.weights.items() if ".attn_q." not in name
                                       and ".attn_k." not in name and ".attn_v." not in name})  # fmt: skip
    for n in range(2):
        for end in ("weight", "bias") if arch == "qwen2" else ("weight",):
            fused.weights[f"blk.{n}.attn_qkv.{end}"] = np.concatenate(
                [apart.weights[f"blk.{n}.attn_{part}.{end}"] for part in "qkv"]
            )
    expected = apart.model().logits(tiny.IDS).numpy()
    np.testing.assert_allclose(fused.model().logits(tiny.IDS).numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(fused.model().next_logits(tiny.IDS[:2]), expected[1], rtol=1e-4, atol=1e-5)
    shapes = {name: array.shape for name, array in fused.weights.items()}
    ARCHITECTURES[arch].check(fused.model().config, shapes)
    with pytest.raises(FormatError, match=r"^blk\.0\.attn_qkv\.weight has shape \(47, 24\), and a "):
        ARCHITECTURES[arch].check(fused.model().config, shapes | {"blk.0.attn_qkv.weight": (47, 24)})
