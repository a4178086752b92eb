"""Mixtures of experts against those of `transformers`, where it is installed: tiny random models, the same logits."""

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
HEADS, KV, WIDTH, COUNT, USED, WIDE, SHARED = 4, 2, 32, 6, 2, 16, 24
SIZES = {
    "vocab_size": 50, "hidden_size": WIDTH, "intermediate_size": WIDE, "num_hidden_layers": 3, "head_dim": 8,
    "num_attention_heads": HEADS, "num_key_value_heads": KV, "max_position_embeddings": 128, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "num_experts_per_tok": USED, "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}  # fmt: skip
HALF = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}
SCALED = {"norm_topk_prob": True, "routed_scaling_factor": 1.5}
SCALED_KEYS = {"expert_weights_norm": True, "expert_weights_scale": 1.5, "expert_gating_func": 2}
ONE_GROUP = {"n_routed_experts": COUNT, "moe_intermediate_size": WIDE, "n_shared_experts": 1, "n_group": 1,
             "topk_group": 1, "first_k_dense_replace": 1, "intermediate_size": 40}  # fmt: skip
FIRST_DENSE = {"leading_dense_block_count": 1, "expert_shared_count": 1, "feed_forward_length": 40}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32,
        "beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}  # fmt: skip


class Case(NamedTuple):
    arch: str
    peer: str  # the beginning of the names of its classes
    options: Mapping[str, Any] = MappingProxyType({})  # theirs
    keys: Mapping[str, Any] = MappingProxyType({})  # ours
    names: Mapping[str, str] = MappingProxyType({})  # of layers, where they differ from NAMES
    is_permuted: bool = False  # the converter interleaves the halves of heads


CASES = {
    "mixtral": Case("llama", "Mixtral", {"num_local_experts": COUNT, "sliding_window": None}, is_permuted=True),
    "qwen2moe": Case("qwen2moe", "Qwen2Moe",
                     {"num_experts": COUNT, "moe_intermediate_size": WIDE, "shared_expert_intermediate_size": SHARED},
                     {"expert_shared_feed_forward_length": SHARED}),
    "qwen3moe": Case("qwen3moe", "Qwen3Moe",
                     {"num_experts": COUNT, "moe_intermediate_size": WIDE, "norm_topk_prob": True}),
    "olmoe": Case("olmoe", "Olmoe", {"num_experts": COUNT}),
    "granitemoe": Case("granitemoe", "GraniteMoe",
                       {"num_local_experts": COUNT, "embedding_multiplier": 3.0, "attention_multiplier": 0.3},
                       {"embedding_scale": 3.0, "attention.scale": 0.3}, is_permuted=True),
    "dots1": Case("dots1", "Dots1", ONE_GROUP | SCALED, SCALED_KEYS | FIRST_DENSE),
    "deepseek2": Case(
        "deepseek2", "DeepseekV3",
        ONE_GROUP | SCALED | {"n_group": 2, "q_lora_rank": 10, "kv_lora_rank": 8, "qk_nope_head_dim": 6,
                              "qk_rope_head_dim": 4, "v_head_dim": 5, "num_key_value_heads": HEADS, "head_dim": 4},
        SCALED_KEYS | FIRST_DENSE | {"expert_group_count": 2, "expert_group_used_count": 1, "attention.q_lora_rank": 10,
                                     "attention.kv_lora_rank": 8, "attention.key_length": 12,
                                     "attention.value_length": 8,
                                     "attention.key_length_mla": 10, "attention.value_length_mla": 5,
                                     "attention.head_count_kv": 1, "rope.dimension_count": 4},
    ),
    "glm4moe": Case("glm4moe", "Glm4Moe", HALF | ONE_GROUP | SCALED | {"attention_bias": True},
                    SCALED_KEYS | FIRST_DENSE | {"rope.dimension_count": 4},
                    {"post_attention_layernorm": "post_attention_norm"}),
    "minimax-m2": Case("minimax-m2", "MiniMaxM2", HALF | {"num_local_experts": COUNT, "rotary_dim": 4},
                       {"rope.dimension_count": 4}),
    "gpt-oss": Case("gpt-oss", "GptOss", {"num_local_experts": COUNT, "sliding_window": 8, "rope_parameters": YARN},
                    {"attention.sliding_window": 8, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                     "rope.scaling.original_context_length": 32},
                    {"post_attention_layernorm": "post_attention_norm"}),
}  # fmt: skip
TOP = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
NAMES = {
    **{f"self_attn.{c}_proj": f"attn_{c}" for c in "qkv"},
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.sinks": "attn_sinks",
    **{f"mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")},
    **{f"{part}.{name}_proj": f"ffn_{name}_shexp" for part in ("mlp.shared_experts", "mlp.shared_expert")
       for name in ("gate", "up", "down")},
    **dict.fromkeys(("mlp.gate", "mlp.router", "block_sparse_moe.router"), "ffn_gate_inp"),
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
}  # fmt: skip
_OF_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+?)(?:\.(weight|bias))?")


def build(case: Case) -> Any:
    """Their model, with random weights."""
    torch.manual_seed(1)
    config = getattr(transformers, case.peer + "Config")(**{**SIZES, **case.options}, attn_implementation="eager")
    model = getattr(transformers, case.peer + "ForCausalLM")(config).eval().float()
    with torch.no_grad():
        for name, weight in [*model.named_parameters(), *model.named_buffers()]:
            if "inv_freq" not in name:
                spread = 0.3 if weight.ndim == 1 or "bias" in name else WIDTH**-0.5
                weight.copy_(torch.randn_like(weight) * spread + ("norm" in name and weight.ndim == 1))
    return model


def interleaved(rows: Array, heads: int) -> Array:
    """Halves of a head interleaved."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def of_experts(part: str, array: Array, case: Case) -> dict[str, Array]:
    """Stacked parameters under our names."""
    end = "bias" if part.endswith("bias") else "weight"
    is_turned = case.peer == "GptOss"  # (experts, in, out), gate and up by turns
    array = array.swapaxes(1, 2) if is_turned and end == "weight" else array
    if "down_proj" in part:
        return {f"ffn_down_exps.{end}": array}
    gate, up = (array[:, ::2], array[:, 1::2]) if is_turned else np.split(array, 2, 1)
    return {f"ffn_gate_exps.{end}": gate, f"ffn_up_exps.{end}": up}


def convert(model: Any, case: Case) -> dict[str, Array]:
    """Their weights under the names of GGUF files."""
    found: dict[str, Array] = {}
    for name, tensor in model.state_dict().items():
        array, match = tensor.numpy(), _OF_LAYER.fullmatch(name)
        if match is None:
            stem, end = name.split(".")[-2:]
            found[f"{TOP[stem]}.{end}"] = array
            continue
        n, part, end = match.groups()
        if ".experts." in part:
            parts = of_experts(part, array, case)
        elif "kv_b_proj" in part:  # keys and values of each head
            rows = array.reshape(HEADS, 11, -1)
            parts = {"attn_k_b.weight": rows[:, :6].swapaxes(1, 2), "attn_v_b.weight": rows[:, 6:]}
        elif "e_score_correction_bias" in part:
            parts = {"exp_probs_b.bias": array.reshape(-1)}
        else:
            ours = {**NAMES, **case.names}[part]
            if case.is_permuted and ours in ("attn_q", "attn_k"):
                array = interleaved(array, HEADS if ours == "attn_q" else KV)
            parts = {f"{ours}.{end or 'weight'}": array.reshape(-1) if ours == "ffn_gate_inp_shexp" else array}
        found |= {f"blk.{n}.{key}": value for key, value in parts.items()}
    return {name: np.ascontiguousarray(array, np.float32) for name, array in found.items()}


def ours(model: Any, case: Case) -> Model:
    keys = {
        "context_length": 128, "embedding_length": WIDTH, "block_count": 3, "attention.head_count": HEADS,
        "attention.head_count_kv": KV, "feed_forward_length": WIDE, "expert_count": COUNT, "expert_used_count": USED,
        "expert_feed_forward_length": WIDE, "attention.layer_norm_rms_epsilon": model.config.rms_norm_eps, **case.keys,
    }  # fmt: skip
    weights = convert(model, case)
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
    found = ours(model, case)
    np.testing.assert_allclose(found.logits(ids[0].tolist()).numpy(), expected, atol=2e-4 * float(expected.std()))
    alone = found.next_logits(ids[0, :3].tolist())
    np.testing.assert_allclose(alone, expected[2], atol=2e-4 * float(expected.std()) + 1e-5)


def test_what_is_not_compared_here() -> None:
    """Transformers routes phimoe in another way in training and here; the text part of qwen3vlmoe is qwen3moe."""
    mixing = {name for name, kind in ARCHITECTURES.items() if kind.mixes == "always" and not kind.has_states}
    assert mixing - {case.arch for case in CASES.values()} == {
        "phimoe", "qwen3vlmoe", "hunyuan-moe", "ernie4_5-moe", "llama4",
    }  # fmt: skip
