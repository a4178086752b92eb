"""Dense architectures against those of `transformers`, where it is installed: tiny random models, the same logits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

from kernmill import Tensor
from kernmill.llm.arch import ARCHITECTURES, Config
from kernmill.llm.generate import Model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="a peer, no dependency of ours")

Array = np.ndarray[Any, Any]
HEADS, KV, WIDTH = 4, 2, 32
SIZES = {
    "vocab_size": 50, "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 5,
    "num_attention_heads": HEADS, "num_key_value_heads": KV, "max_position_embeddings": 128, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
HALF = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        "partial_rotary_factor": 0.5}  # fmt: skip
LAYER_NORM = {"attention.layer_norm_epsilon": 1e-5}
PARTIAL = {"rope.dimension_count": 4}


class Case(NamedTuple):
    arch: str
    peer: str  # the beginning of the names of its classes
    options: Mapping[str, Any] = ROPE  # theirs
    keys: Mapping[str, Any] = MappingProxyType({})  # ours
    names: Mapping[str, str] = MappingProxyType({})  # of layers, where they differ from NAMES
    is_permuted: bool = False  # the converter interleaves the halves of heads


TWO_NORMS = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
GELU = "gelu_pytorch_tanh"  # as llama.cpp, which has the tanh form for every GELU
NEOX = HALF | {"rotary_pct": 0.5, "hidden_act": GELU}
OLD_FALCON = {"activation": GELU, "multi_query": True, "parallel_attn": True, "bias": False}
NEW_FALCON = {"activation": GELU, "new_decoder_architecture": True, "num_kv_heads": KV, "bias": False}
GPT2 = {"n_embd": WIDTH, "n_layer": 5, "n_head": HEADS, "n_positions": 128, "n_inner": 48}
WIDE = {"attention.key_length": 16, "attention.value_length": 16}
CASES = {
    "gemma": Case("gemma", "Gemma", ROPE | {"head_dim": 16}, WIDE),
    "granite": Case(
        "granite", "Granite",
        ROPE | {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.3,
                "logits_scaling": 5.0},
        {"embedding_scale": 3.0, "residual_scale": 0.4, "attention.scale": 0.3, "logit_scale": 5.0}, is_permuted=True,
    ),
    "smollm3": Case("smollm3", "SmolLM3", ROPE | {"no_rope_layer_interval": 4, "use_sliding_window": False},
                    is_permuted=True),
    "ernie4_5": Case("ernie4_5", "Ernie4_5", ROPE | {"head_dim": 8}),
    "arcee": Case("arcee", "Arcee", is_permuted=True),
    "seed_oss": Case("seed_oss", "SeedOss", ROPE | {"head_dim": 8, "attention_bias": True, "attention_out_bias": False},
                     names={"post_attention_layernorm": "post_attention_norm"}),
    "hunyuan": Case("hunyuan-dense", "HunYuanDenseV1", ROPE | {"head_dim": 8}),
    "olmo2": Case("olmo2", "Olmo2", names=TWO_NORMS),
    "exaone4": Case("exaone4", "Exaone4", ROPE | {"sliding_window": 8, "sliding_window_pattern": 4},
                    {"attention.sliding_window": 8}, TWO_NORMS),
    "chatglm": Case("chatglm", "Glm", HALF | {"head_dim": 8, "attention_bias": True}, PARTIAL),
    "glm4": Case("glm4", "Glm4", HALF | {"head_dim": 8}, PARTIAL,
                 {"post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm"}),
    "starcoder2": Case("starcoder2", "Starcoder2", ROPE | {"sliding_window": None}, LAYER_NORM),
    "gptneox": Case("gptneox", "GPTNeoX", NEOX,
                    LAYER_NORM | PARTIAL),
    "gptneox in turn": Case("gptneox", "GPTNeoX", NEOX | {"use_parallel_residual": False},
                            LAYER_NORM | PARTIAL | {"use_parallel_residual": False}),
    "gpt2": Case("gpt2", "GPT2", GPT2, LAYER_NORM),
    "starcoder": Case("starcoder", "GPTBigCode", GPT2 | {"multi_query": True},
                      LAYER_NORM | {"attention.head_count_kv": 1}),
    "phi2": Case("phi2", "Phi", HALF, LAYER_NORM | PARTIAL),
    "falcon 7": Case("falcon", "Falcon", ROPE | OLD_FALCON, LAYER_NORM | {"attention.head_count_kv": 1}),
    "falcon 40": Case("falcon", "Falcon", ROPE | NEW_FALCON, LAYER_NORM),
    "nemotron": Case("nemotron", "Nemotron", HALF, LAYER_NORM | PARTIAL),
    "stablelm": Case("stablelm", "StableLm", HALF | {"use_qkv_bias": True}, LAYER_NORM | PARTIAL),
    "stablelm parallel": Case("stablelm", "StableLm", HALF | {"use_parallel_residual": True}, LAYER_NORM | PARTIAL),
    "command-r": Case("command-r", "Cohere", ROPE | {"logit_scale": 0.25}, LAYER_NORM | {"logit_scale": 0.25}),
    "cohere2": Case("cohere2", "Cohere2",
                    ROPE | {"logit_scale": 0.5, "sliding_window": 8, "head_dim": 8, "sliding_window_pattern": 4},
                    LAYER_NORM | {"logit_scale": 0.5, "attention.sliding_window": 8}),
}  # fmt: skip
TOP = {
    **dict.fromkeys(("embed_tokens", "wte", "word_embeddings", "embed_in"), "token_embd"),
    **dict.fromkeys(("norm", "ln_f", "final_layernorm", "final_layer_norm"), "output_norm"),
    **dict.fromkeys(("lm_head", "embed_out"), "output"),
    "wpe": "position_embd",
}
NAMES = {
    **{f"self_attn.{c}_proj": f"attn_{c}" for c in "qkv"},
    **dict.fromkeys(("attention.query_key_value", "self_attention.query_key_value", "attn.c_attn"), "attn_qkv"),
    **dict.fromkeys(("self_attn.o_proj", "self_attn.dense", "attention.dense", "self_attention.dense", "attn.c_proj"),
                    "attn_output"),
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    **dict.fromkeys(("mlp.up_proj", "mlp.gate_up_proj", "mlp.c_fc", "mlp.fc1", "mlp.dense_h_to_4h"), "ffn_up"),
    **dict.fromkeys(("mlp.down_proj", "mlp.c_proj", "mlp.fc2", "mlp.dense_4h_to_h"), "ffn_down"),
    **dict.fromkeys(("input_layernorm", "ln_1", "ln_mlp"), "attn_norm"), "ln_attn": "attn_norm_2",
    **dict.fromkeys(("post_attention_layernorm", "ln_2"), "ffn_norm"),
}  # fmt: skip
_OF_LAYER = re.compile(r"(?:\w+\.)*(?:layers|h)\.(\d+)\.(.+)\.(weight|bias)")


def build(case: Case) -> Any:
    """Their model, with random weights."""
    torch.manual_seed(1)
    config = getattr(transformers, case.peer + "Config")(**{**SIZES, **case.options}, attn_implementation="eager")
    suffix = "LMHeadModel" if case.peer == "GPT2" else "ForCausalLM"
    model = getattr(transformers, case.peer + suffix)(config).eval().float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            is_one = weight.ndim == 1 and re.search("norm|ln_", name) is not None and name.endswith("weight")
            is_one = is_one and case.peer not in ("Gemma", "Nemotron")
            weight.copy_(torch.randn_like(weight) * (0.3 if weight.ndim == 1 else WIDTH**-0.5) + is_one)
    return model


def interleaved(rows: Array, heads: int) -> Array:
    """Halves of a head interleaved."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def stacked(rows: Array, case: Case) -> Array:
    """Fused rows as GGUF files have them: queries, keys, values."""
    if case.peer == "GPTNeoX":
        return rows.reshape(HEADS, 3, -1, *rows.shape[1:]).swapaxes(0, 1).reshape(rows.shape)
    if case.options.get("new_decoder_architecture"):
        groups = rows.reshape(KV, HEADS // KV + 2, -1, *rows.shape[1:])
        parts = groups[:, :-2], groups[:, -2], groups[:, -1]
        return np.concatenate([part.reshape(-1, *rows.shape[1:]) for part in parts])
    return rows


def convert(model: Any, case: Case) -> dict[str, Array]:
    """Their weights under the names of GGUF files."""
    found: dict[str, Array] = {}
    for name, tensor in model.state_dict().items():
        array, match = tensor.numpy(), _OF_LAYER.fullmatch(name)
        if match is None:
            stem, end = name.split(".")[-2:]
            found[f"{TOP[stem]}.{end}"] = array + (case.peer in ("Gemma", "Nemotron") and "norm" in stem
                                                   and end == "weight")  # fmt: skip
            continue
        n, part, end = match.groups()
        ours = {**NAMES, **case.names}[part]
        if case.peer == "GPT2" and array.ndim == 2:
            array = array.T
        if case.peer in ("Gemma", "Nemotron") and "norm" in ours and end == "weight":
            array = array + 1
        if ours == "attn_qkv":
            array = stacked(array, case)
        if case.is_permuted and ours in ("attn_q", "attn_k"):
            array = interleaved(array, HEADS if ours == "attn_q" else KV)
        found[f"blk.{n}.{ours}.{end}"] = array
    if model.config.tie_word_embeddings:
        found.pop("output.weight", None)
    return {name: np.ascontiguousarray(array, np.float32) for name, array in found.items()}


def ours(model: Any, case: Case) -> Model:
    keys = {
        "context_length": 128, "embedding_length": WIDTH, "block_count": 5, "attention.head_count": HEADS,
        "attention.head_count_kv": HEADS if case.peer in ("GPTNeoX", "GPT2") else KV,
        "attention.layer_norm_rms_epsilon": getattr(model.config, "rms_norm_eps", None),
        **case.keys,
    }  # fmt: skip
    weights = convert(model, case)
    keys["feed_forward_length"] = weights["blk.0.ffn_down.weight"].shape[1]
    keys = {name: value for name, value in keys.items() if value is not None}
    metadata = {"general.architecture": case.arch} | {f"{case.arch}.{key}": value for key, value in keys.items()}
    used = set[str]()

    def find(name: str) -> Tensor | None:
        used.add(name)
        return Tensor(weights[name]) if name in weights else None

    made = Model(Config.of(metadata), find, capacity=64, block=16)
    assert set(weights) <= used
    return made


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_the_logits_are_theirs(name: str) -> None:
    case = CASES[name]
    model = build(case)
    ids = torch.randint(0, 50, (1, 30))
    with torch.no_grad():
        expected = model(ids).logits[0].numpy()
    found = ours(model, case).logits(ids[0].tolist()).numpy()
    np.testing.assert_allclose(found, expected, atol=2e-4 * float(expected.std()) + 1e-5)


def test_what_is_not_compared_here() -> None:
    """Transformers lacks some; others are in test_transformers.py, t5 is in test_transformers_folders.py;
    the text part of qwen2vl and qwen3vl is a Qwen."""
    missing = {"internlm2", "exaone", "xverse", "baichuan", "orion", "codeshell", "pangu-embedded"}
    apart = {"llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "qwen2vl", "qwen3vl", "t5"} | missing
    dense = {name for name, kind in ARCHITECTURES.items() if kind.mixes != "always" and not kind.has_states}
    assert dense - {case.arch for case in CASES.values()} == apart
