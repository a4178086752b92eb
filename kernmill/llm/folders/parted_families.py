"""Families whose folders hold several matrices of a GGUF file in one tensor, or whose parts have names of their own.

Source: the models' code in transformers; the names of the GGUF specification.
"""

from __future__ import annotations

from typing import Any

from .changes import (
    AS_FLOATS,
    AS_STORED,
    Change,
    every_second,
    keys_of_latent,
    rows_by_turns,
    swapped,
    values_of_latent,
)
from .config_json import ConfigJson, quantized_by
from .families import ATTENTION, ENDS, EXPERTS, GATED, NORMS, FolderFamily

__all__ = ["PARTED_FAMILIES"]

Keys = dict[str, Any]
_PARTS = ("gate", "up", "down")
_PHI = {
    **ENDS,
    **{f"layers.{{n}}.self_attn.{letter}_proj": f"attn_{letter}" for letter in "qkv"},
    "final_layernorm": "output_norm",
    "layers.{n}.input_layernorm": "attn_norm",
    "layers.{n}.self_attn.dense": "attn_output",
    "layers.{n}.mlp.fc1": "ffn_up",
    "layers.{n}.mlp.fc2": "ffn_down",
}
_COHERE = {**ENDS, **ATTENTION, **GATED, "layers.{n}.input_layernorm": "attn_norm"}
_GPT_OSS: dict[str, str | tuple[str, ...]] = {
    **ENDS,
    **ATTENTION,
    "layers.{n}.input_layernorm": "attn_norm",
    "layers.{n}.post_attention_layernorm": "post_attention_norm",
    "layers.{n}.self_attn.sinks": "attn_sinks",
    "layers.{n}.mlp.router": "ffn_gate_inp",
    "layers.{n}.mlp.experts.gate_up_proj": ("ffn_gate_exps", "ffn_up_exps"),
    "layers.{n}.mlp.experts.gate_up_proj_bias": ("ffn_gate_exps.bias", "ffn_up_exps.bias"),
    "layers.{n}.mlp.experts.down_proj": "ffn_down_exps",
    "layers.{n}.mlp.experts.down_proj_bias": "ffn_down_exps.bias",
}
_DEEPSEEK: dict[str, str | tuple[str, ...]] = {
    **ENDS,
    **NORMS,
    **GATED,
    **EXPERTS,
    "layers.{n}.self_attn.q_proj": "attn_q",
    "layers.{n}.self_attn.q_a_proj": "attn_q_a",
    "layers.{n}.self_attn.q_a_layernorm": "attn_q_a_norm",
    "layers.{n}.self_attn.q_b_proj": "attn_q_b",
    "layers.{n}.self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "layers.{n}.self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "layers.{n}.self_attn.kv_b_proj": ("attn_k_b", "attn_v_b"),
    "layers.{n}.self_attn.o_proj": "attn_output",
    "layers.{n}.mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    **{f"layers.{{n}}.mlp.shared_experts.{name}_proj": f"ffn_{name}_shexp" for name in _PARTS},
}


def _cohere(config: ConfigJson) -> Keys:
    return {"logit_scale": config.number("logit_scale", default=0.0625)}


def _gpt_oss(config: ConfigJson) -> Keys:
    return {
        "expert_count": config.whole("num_local_experts", "num_experts"),
        "expert_used_count": config.whole("num_experts_per_tok", "experts_per_token"),
        "expert_feed_forward_length": config.whole("intermediate_size"),
    }


def _halves_of_experts(config: ConfigJson) -> dict[str, Change]:
    """Columns of gates and of what they multiply take turns; where they are packed, rows do."""
    is_packed = quantized_by(config) is not None
    found = {"ffn_gate_inp": AS_FLOATS, "ffn_down_exps.weight": AS_STORED if is_packed else swapped()}
    for first, name in enumerate(("ffn_gate_exps", "ffn_up_exps")):
        weight = rows_by_turns(first) if is_packed else swapped(first)
        found |= {f"{name}.weight": weight, f"{name}.bias": every_second(first)}
    return found


def _deepseek(config: ConfigJson) -> Keys:
    """Raises FormatError for groups that are chosen by their best expert alone."""
    rank, rotated = config.whole("kv_lora_rank"), config.whole("qk_rope_head_dim")
    is_sigmoid = (config.get("scoring_func") or "softmax") == "sigmoid"
    groups = config.whole("n_group", default=1)
    if groups > 1 and not is_sigmoid and config.get("topk_method") != "greedy":
        raise config.fault(f"topk_method {config.get('topk_method')!r} over {groups} groups is not supported")
    keys: Keys = {
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + rotated,
        "attention.value_length": rank,
        "attention.key_length_mla": config.whole("qk_nope_head_dim") + rotated,
        "attention.value_length_mla": config.whole("v_head_dim"),
        "rope.dimension_count": rotated,
        "expert_count": config.whole("n_routed_experts", "num_local_experts"),
        "expert_used_count": config.whole("num_experts_per_tok"),
        "expert_feed_forward_length": config.whole("moe_intermediate_size"),
        "expert_shared_count": config.whole("n_shared_experts", default=0, least=0),
        "expert_weights_scale": config.number("routed_scaling_factor", default=1.0),
        "expert_weights_norm": config.flag("norm_topk_prob", is_sigmoid),
        "expert_gating_func": 2 if is_sigmoid else 1,
        "leading_dense_block_count": config.whole("first_k_dense_replace", default=0, least=0),
    }
    if config.get("q_lora_rank") is not None:
        keys["attention.q_lora_rank"] = config.whole("q_lora_rank")
    if is_sigmoid and groups > 1:
        keys |= {"expert_group_count": groups, "expert_group_used_count": config.whole("topk_group")}
    params = config.table("rope_parameters") or config.table("rope_scaling")
    if (params.get("rope_type") or params.get("type")) == "yarn":
        factor: Any = params.get("mscale_all_dim") or 0.0
        keys |= {"rope.scaling.attn_factor": 1.0, "rope.scaling.yarn_log_multiplier": 0.1 * float(factor)}
    return keys


def _latent(config: ConfigJson) -> dict[str, Change]:
    sizes = config.heads, config.whole("qk_nope_head_dim"), config.whole("v_head_dim")
    return {"attn_k_b": keys_of_latent(*sizes), "attn_v_b": values_of_latent(*sizes), "ffn_gate_inp": AS_FLOATS}


_COHERE_DEFAULTS = {"layer_norm_eps": 1e-5, "tie_word_embeddings": True}
PARTED_FAMILIES: dict[str, FolderFamily] = {
    "CohereForCausalLM": FolderFamily("command-r", _COHERE, _cohere, defaults=_COHERE_DEFAULTS),
    "Cohere2ForCausalLM": FolderFamily(
        "cohere2", _COHERE, _cohere, defaults={**_COHERE_DEFAULTS, "sliding_window": 4096}, has_window=True
    ),
    "DeepseekV2ForCausalLM": FolderFamily("deepseek2", _DEEPSEEK, _deepseek, _latent, {"rms_norm_eps": 1e-6}),
    "DeepseekV3ForCausalLM": FolderFamily(
        "deepseek2", _DEEPSEEK, _deepseek, _latent,
        {"rms_norm_eps": 1e-6, "scoring_func": "sigmoid", "norm_topk_prob": True, "n_group": 8, "topk_group": 4},
    ),
    "GptOssForCausalLM": FolderFamily(
        "gpt-oss", _GPT_OSS, _gpt_oss, _halves_of_experts, {"rms_norm_eps": 1e-5, "head_dim": 64}, has_window=True,
        packed=("mxfp4",),
    ),
    "PhiForCausalLM": FolderFamily(
        "phi2", _PHI, defaults={"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "hidden_act": "gelu_new"},
        activations=("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu"),
    ),
}  # fmt: skip
