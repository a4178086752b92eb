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


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_a_missing_tensor_is_named(tiny: Any, name: str) -> None:
    made = tiny.make(name, {"output_norm.weight": ()}, {})
    with pytest.raises(FormatError) as caught:
        made.model()
    assert str(caught.value) == f"the file has no tensor output_norm.weight, which a {name} model needs."


def test_a_tensor_of_another_shape_is_named(tiny: Any) -> None:
    with pytest.raises(FormatError) as caught:
        tiny.make("llama", {}, {"ffn_up.weight": (20, 23)}).model()
    assert str(caught.value) == (
        "blk.0.ffn_up.weight has shape (20, 23), and a llama model of these sizes needs (20, 24). "
        "The file's metadata and its tensors do not belong together: embedding_length 24, feed_forward_length 20, "
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
