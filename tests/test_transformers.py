"""Architectures against those of `transformers`, where it is installed: tiny random models, the same logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from kernmill import Tensor
from kernmill.llm.arch import Config
from kernmill.llm.generate import Model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="a peer, no dependency of ours")

Array = np.ndarray[Any, Any]
SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "pad_token_id": 0,
}
SHORT, LONG = [1.0, 1.1, 1.3, 1.5], [1.0, 2.0, 4.0, 9.0]


class Case(NamedTuple):
    name: str
    arch: str
    peer: str  # the beginning of the names of its classes
    options: dict[str, Any]  # theirs
    keys: dict[str, Any]  # ours
    capacity: int = 64
    tokens: int = 40


def rope(kind: str = "default", theta: float = 1e4, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


WIDE = {"attention.key_length": 16, "attention.value_length": 16}
GEMMA = {"head_dim": 16, "num_hidden_layers": 7, "sliding_window": 8, "query_pre_attn_scalar": 16}
NEAR = WIDE | {"attention.sliding_window": 8}
CAPS = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}
LONGROPE = rope("longrope", short_factor=SHORT, long_factor=LONG, original_max_position_embeddings=32, factor=4.0) | {
    "sliding_window": None,
    "original_max_position_embeddings": 32,
}
LONGROPE_KEYS = {
    "rope.scaling.original_context_length": 32,
    "rope.scaling.attn_factor": math.sqrt(1 + math.log(4) / math.log(32)),
}
LLAMA3 = rope("llama3", 5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=32)
YARN_KEYS = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 32,
}
LINEAR = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
}
LINEAR_KEYS = {"rope.freq_base": 1e6, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
CASES = [
    Case("llama", "llama", "Llama", rope(), {}),
    Case("llama 3", "llama", "Llama", {"tie_word_embeddings": True} | LLAMA3, {"rope.freq_base": 5e5}),
    Case("biases", "llama", "Llama", {"head_dim": 16, "attention_bias": True}, WIDE),
    Case("qwen2", "qwen2", "Qwen2", rope(theta=1e6), {"rope.freq_base": 1e6}),
    Case("yarn", "qwen2", "Qwen2", YARN, YARN_KEYS),
    Case("qwen3", "qwen3", "Qwen3", {"head_dim": 16} | rope(theta=1e6), WIDE | {"rope.freq_base": 1e6}),
    Case("gemma2", "gemma2", "Gemma2", GEMMA | CAPS, NEAR | CAPS),
    Case("gemma3", "gemma3", "Gemma3Text", GEMMA, NEAR | {"rope.freq_base": 1e6}),
    Case("linear", "gemma3", "Gemma3Text", GEMMA | LINEAR, NEAR | LINEAR_KEYS),
    Case("phi3", "phi3", "Phi3", {"sliding_window": None}, {}),
    Case("window", "phi3", "Phi3", {"sliding_window": 10}, {"attention.sliding_window": 10}),
    Case("short", "phi3", "Phi3", LONGROPE, LONGROPE_KEYS, capacity=32, tokens=30),
    Case("long", "phi3", "Phi3", LONGROPE, LONGROPE_KEYS),
]
NAMES = {
    "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    **{f"self_attn.{letter}_proj": f"attn_{letter}" for letter in "qkv"},
}
GEMMA_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def build(case: Case) -> Any:
    """Their model, with random weights."""
    torch.manual_seed(1)
    config = getattr(transformers, case.peer + "Config")(**SIZES | case.options, attn_implementation="eager")
    model = getattr(transformers, case.peer.removesuffix("Text") + "ForCausalLM")(config).eval().float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            is_one = weight.ndim == 1 and "norm" in name and "Gemma" not in case.peer
            weight.copy_(torch.randn_like(weight) * (0.3 if weight.ndim == 1 else weight.shape[-1] ** -0.5) + is_one)
    return model


def neighbours(rows: Array, heads: int) -> Array:
    """Halves of a head interleaved, as llama's files hold them."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def convert(model: Any, case: Case) -> dict[str, Array]:
    """Their weights under the names of GGUF files."""
    is_gemma = "Gemma" in case.peer
    names = NAMES | (GEMMA_NORMS if is_gemma else {"post_attention_layernorm": "ffn_norm"})
    found: dict[str, Array] = {}
    for name, tensor in model.state_dict().items():
        array, (stem, end) = tensor.numpy(), name.rsplit(".", 1)
        if is_gemma and "norm" in stem:
            array = array + 1
        if stem in ("model.embed_tokens", "model.norm", "lm_head"):
            ours = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}[stem]
        else:
            n, part = stem.removeprefix("model.layers.").split(".", 1)
            ours = f"blk.{n}.{names[part]}"
            if case.arch == "llama" and names[part] in ("attn_q", "attn_k"):
                array = neighbours(array, 4 if names[part] == "attn_q" else 2)
        found[f"{ours}.{end}"] = array
    if model.config.tie_word_embeddings:
        found.pop("output.weight", None)
    if case.name == "llama 3":
        plain = 5e5 ** (-np.arange(0, 8, 2) / 8)
        found["rope_freqs.weight"] = plain / model.model.rotary_emb.inv_freq.numpy()
    if "longrope" in str(case.options):
        found |= {"rope_factors_short.weight": np.array(SHORT), "rope_factors_long.weight": np.array(LONG)}
    return {name: np.ascontiguousarray(array, np.float32) for name, array in found.items()}


def ours(model: Any, case: Case) -> Model:
    c = model.config
    keys = {
        "context_length": c.max_position_embeddings,
        "embedding_length": c.hidden_size,
        "block_count": c.num_hidden_layers,
        "feed_forward_length": c.intermediate_size,
        "attention.head_count": c.num_attention_heads,
        "attention.head_count_kv": c.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": c.rms_norm_eps,
        **case.keys,
    }
    metadata = {"general.architecture": case.arch} | {f"{case.arch}.{key}": value for key, value in keys.items()}
    find: Callable[[str], Tensor | None] = {k: Tensor(v) for k, v in convert(model, case).items()}.get
    return Model(Config.of(metadata), find, capacity=case.capacity, block=16)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.filterwarnings("ignore")
def test_the_logits_are_theirs(case: Case) -> None:
    model = build(case)
    ids = torch.randint(0, 50, (1, case.tokens))
    with torch.no_grad():
        expected = model(ids).logits[0].numpy()
    logits = ours(model, case).logits(ids[0].tolist()).numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-4)
