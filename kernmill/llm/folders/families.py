"""The families of models that are opened from a folder, one row each: GGUF names of tensors, keys, and what differs.

A name in a folder loses its beginning, such as `model.`, before it is looked up. {n} is a layer, {e} an expert: the
matrices of a layer's experts become one.

Source: the models' code in transformers; the names of the GGUF specification.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .changes import AS_FLOATS, FLAT, TRANSPOSED, Change, by_pairs, queries_first
from .config_json import ConfigJson

__all__ = ["ATTENTION", "ENDS", "EXPERTS", "FAMILIES", "GATED", "NORMS", "FolderFamily"]

Keys = dict[str, Any]
ENDS = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
ATTENTION = {
    **{f"layers.{{n}}.self_attn.{letter}_proj": f"attn_{letter}" for letter in "qkv"},
    "layers.{n}.self_attn.o_proj": "attn_output",
    "layers.{n}.self_attn.q_norm": "attn_q_norm",
    "layers.{n}.self_attn.k_norm": "attn_k_norm",
}
GATED = {f"layers.{{n}}.mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")}
NORMS = {"layers.{n}.input_layernorm": "attn_norm", "layers.{n}.post_attention_layernorm": "ffn_norm"}
_NORMS_AROUND = {
    "layers.{n}.input_layernorm": "attn_norm",
    "layers.{n}.post_attention_layernorm": "post_attention_norm",
    "layers.{n}.pre_feedforward_layernorm": "ffn_norm",
    "layers.{n}.post_feedforward_layernorm": "post_ffw_norm",
}
_LLAMA = {**ENDS, **ATTENTION, **GATED, **NORMS}
EXPERTS = {
    "layers.{n}.mlp.gate": "ffn_gate_inp",
    "layers.{n}.mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    **{f"layers.{{n}}.mlp.experts.{{e}}.{name}_proj": f"ffn_{name}_exps" for name in ("gate", "up", "down")},
    **{f"layers.{{n}}.mlp.shared_expert.{name}_proj": f"ffn_{name}_shexp" for name in ("gate", "up", "down")},
}
_MIXTRAL = {
    "layers.{n}.block_sparse_moe.gate": "ffn_gate_inp",
    **{
        f"layers.{{n}}.block_sparse_moe.experts.{{e}}.{name}": f"ffn_{part}_exps"
        for name, part in (("w1", "gate"), ("w2", "down"), ("w3", "up"))
    },
}
_PHI3 = {
    "layers.{n}.self_attn.qkv_proj": "attn_qkv",
    "layers.{n}.mlp.gate_up_proj": "ffn_up",
}
_NEOX = {
    "embed_in": "token_embd",
    "final_layer_norm": "output_norm",
    "embed_out": "output",
    "lm_head": "output",
    "layers.{n}.input_layernorm": "attn_norm",
    "layers.{n}.post_attention_layernorm": "ffn_norm",
    "layers.{n}.attention.query_key_value": "attn_qkv",
    "layers.{n}.attention.dense": "attn_output",
    "layers.{n}.mlp.dense_h_to_4h": "ffn_up",
    "layers.{n}.mlp.dense_4h_to_h": "ffn_down",
}
_GPT2 = {
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
    "lm_head": "output",
    "h.{n}.ln_1": "attn_norm",
    "h.{n}.ln_2": "ffn_norm",
    "h.{n}.attn.c_attn": "attn_qkv",
    "h.{n}.attn.c_proj": "attn_output",
    "h.{n}.mlp.c_fc": "ffn_up",
    "h.{n}.mlp.c_proj": "ffn_down",
}
_BERT = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    **{
        f"encoder.layer.{{n}}.attention.self.{name}": f"attn_{name[0]}"
        for name in ("query", "key", "value")
    },
    "encoder.layer.{n}.attention.output.dense": "attn_output",
    "encoder.layer.{n}.attention.output.LayerNorm": "attn_output_norm",
    "encoder.layer.{n}.intermediate.dense": "ffn_up",
    "encoder.layer.{n}.output.dense": "ffn_down",
    "encoder.layer.{n}.output.LayerNorm": "layer_output_norm",
}  # fmt: skip
_STARCODER2 = {
    **_LLAMA,
    "layers.{n}.mlp.c_fc": "ffn_up",
    "layers.{n}.mlp.c_proj": "ffn_down",
}


def _t5_names() -> dict[str, str]:
    """Of an encoder, and of a decoder whose layers have attention to it in between."""
    found = {"shared": "token_embd", "lm_head": "output"}
    for side, short, parts in (
        ("encoder", "enc", (("SelfAttention", "attn"),)),
        ("decoder", "dec", (("SelfAttention", "attn"), ("EncDecAttention", "cross_attn"))),
    ):
        found[f"{side}.final_layer_norm"] = f"{short}.output_norm"
        begin, ours = f"{side}.block.{{n}}.layer", f"{short}.blk.{{n}}"
        for number, (theirs, name) in enumerate(parts):
            found |= {f"{begin}.{number}.{theirs}.{letter}": f"{ours}.{name}_{letter}" for letter in "qkvo"}
            found[f"{begin}.{number}.{theirs}.relative_attention_bias"] = f"{ours}.{name}_rel_b"
            found[f"{begin}.{number}.layer_norm"] = f"{ours}.{name}_norm"
        last = f"{begin}.{len(parts)}"
        found[f"{last}.layer_norm"] = f"{ours}.ffn_norm"
        for theirs, name in (("wi", "up"), ("wi_0", "gate"), ("wi_1", "up"), ("wo", "down")):
            found[f"{last}.DenseReluDense.{theirs}"] = f"{ours}.ffn_{name}"
    return found


_RMS = {"rms_norm_eps": 1e-6}


def _no_keys(config: ConfigJson) -> Keys:
    return {}


def _no_changes(config: ConfigJson) -> dict[str, Change]:
    return {}


@dataclass(frozen=True)
class FolderFamily:
    """How a folder of one family becomes a file of an architecture.

    architecture    general.architecture.
    names           of tensors in the folder, without .weight and .bias, to those in a layer or of the whole model;
                    several where one tensor holds several.
    keys            more metadata, without the architecture's name.
    changes         of tensors by their GGUF names, with or without .weight.
    defaults        of config.json, for files that say nothing.
    activations     that the architecture computes.
    norms_by_one    the folder stores w, and x is normed by 1 + w.
    has_window      the architecture has windows; the context of others ends with the window.
    has_rope        positions are rotated.
    packed          methods of quantization whose blocks are read.
    """

    architecture: str
    names: Mapping[str, str | tuple[str, ...]]
    keys: Callable[[ConfigJson], Keys] = _no_keys
    changes: Callable[[ConfigJson], Mapping[str, Change]] = _no_changes
    defaults: Mapping[str, Any] = field(default_factory=dict)
    activations: tuple[str, ...] = ("silu", "swish")
    norms_by_one: bool = False
    has_window: bool = False
    has_rope: bool = True
    packed: tuple[str, ...] = ()


def _paired(config: ConfigJson) -> dict[str, Change]:
    return {"attn_q": by_pairs(config.heads), "attn_k": by_pairs(config.kv_heads)}


def _experts(config: ConfigJson) -> Keys:
    """Raises FormatError where some layers are dense."""
    if config.whole("decoder_sparse_step", default=1) != 1 or config.get("mlp_only_layers"):
        raise config.fault("some layers have no experts (decoder_sparse_step, mlp_only_layers), which is not supported")
    shared = config.whole("shared_expert_intermediate_size", default=0, least=0)
    return {
        "expert_count": config.whole("num_experts", "num_local_experts"),
        "expert_used_count": config.whole("num_experts_per_tok"),
        "expert_feed_forward_length": config.whole("moe_intermediate_size", "intermediate_size"),
        "expert_weights_norm": config.flag("norm_topk_prob", False),
        **({"expert_shared_feed_forward_length": shared} if shared else {}),
    }


def _mixtral(config: ConfigJson) -> Keys:
    return {
        "expert_count": config.whole("num_local_experts"),
        "expert_used_count": config.whole("num_experts_per_tok"),
    }


def _olmoe(config: ConfigJson) -> Keys:
    return {
        "expert_count": config.whole("num_experts"),
        "expert_used_count": config.whole("num_experts_per_tok"),
        "expert_weights_norm": config.flag("norm_topk_prob", False),
    }


def _caps(config: ConfigJson) -> Keys:
    """Scores and soft caps of Gemma 2 and 3."""
    keys: Keys = {"attention.scale": config.number("query_pre_attn_scalar") ** -0.5}
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if config.get(name) is not None:
            keys[name] = config.number(name)
    return keys


def _granite(config: ConfigJson) -> Keys:
    return {
        "attention.scale": config.number("attention_multiplier", default=1.0),
        "embedding_scale": config.number("embedding_multiplier", default=1.0),
        "residual_scale": config.number("residual_multiplier", default=1.0),
        "logit_scale": config.number("logits_scaling", default=1.0),
    }


def _neox(config: ConfigJson) -> Keys:
    return {"use_parallel_residual": config.flag("use_parallel_residual", True)}


def _bert(config: ConfigJson) -> Keys:
    if (kind := config.get("position_embedding_type") or "absolute") != "absolute":
        raise config.fault(f"position_embedding_type is {kind!r}: only absolute positions are supported")
    return {"attention.causal": False}


def _t5(config: ConfigJson) -> Keys:
    kind = config.get("feed_forward_proj") or "relu"
    distance = config.whole("relative_attention_max_distance", default=128)
    if kind not in ("relu", "gated-gelu") or distance != 128:
        raise config.fault(
            f"feed_forward_proj {kind!r} with relative_attention_max_distance {distance}: only 'relu' and 'gated-gelu' "
            "with 128 are supported"
        )
    is_scaled = config.flag("scale_decoder_outputs", config.flag("tie_word_embeddings", True))
    return {
        "logit_scale": config.width**-0.5 if is_scaled else 1.0,
        "attention.relative_buckets_count": config.whole("relative_attention_num_buckets", default=32),
        "decoder_block_count": config.whole("num_decoder_layers", default=config.layers),
        "decoder_start_token_id": config.whole("decoder_start_token_id", default=0, least=0),
    }


def _heads_apart(config: ConfigJson) -> dict[str, Change]:
    return {"attn_qkv": queries_first(config.heads)}


def _of_columns(config: ConfigJson) -> dict[str, Change]:
    return {f"{name}.weight": TRANSPOSED for name in ("attn_qkv", "attn_output", "ffn_up", "ffn_down")}


_ROUTERS = {"ffn_gate_inp": AS_FLOATS, "ffn_gate_inp_shexp": FLAT}
_GELU_TANH = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu")  # of the exact one the table of llama.cpp is near
_GEMMA = {"head_dim": 256, "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh"}
_GEMMA2 = {**_GEMMA, "query_pre_attn_scalar": 256, "sliding_window": 4096, "attn_logit_softcapping": 50.0,
           "final_logit_softcapping": 30.0}  # fmt: skip
_GEMMA3 = {
    **_GEMMA, "num_attention_heads": 8, "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "rope_theta": 1e6,
    "rope_local_base_freq": 1e4, "max_position_embeddings": 131072, "sliding_window": 4096,
}  # fmt: skip

_GEMMA3_ROW = FolderFamily(
    "gemma3", {**_LLAMA, **_NORMS_AROUND}, _caps, defaults=_GEMMA3, activations=_GELU_TANH[:3], norms_by_one=True,
    has_window=True,
)  # fmt: skip
_BERT_ROW = FolderFamily(
    "bert", _BERT, _bert, defaults={"layer_norm_eps": 1e-12, "hidden_act": "gelu"}, activations=_GELU_TANH,
    has_rope=False,
)  # fmt: skip
_QWEN2_ROW = FolderFamily("qwen2", _LLAMA, defaults=_RMS)
_QWEN3_ROW = FolderFamily("qwen3", _LLAMA, defaults={**_RMS, "head_dim": 128})

FAMILIES: dict[str, FolderFamily] = {  # `architectures` of config.json
    "BertModel": _BERT_ROW,
    "BertForMaskedLM": _BERT_ROW,
    "GPT2LMHeadModel": FolderFamily(
        "gpt2", _GPT2, changes=_of_columns, defaults={"layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"},
        activations=_GELU_TANH, has_rope=False,
    ),
    "GPTNeoXForCausalLM": FolderFamily(
        "gptneox", _NEOX, _neox, _heads_apart,
        {"layer_norm_eps": 1e-5, "rotary_pct": 0.25, "hidden_act": "gelu"}, _GELU_TANH,
    ),
    "Gemma2ForCausalLM": FolderFamily(
        "gemma2", {**_LLAMA, **_NORMS_AROUND}, _caps, defaults=_GEMMA2, activations=_GELU_TANH[:3], norms_by_one=True,
        has_window=True,
    ),
    "Gemma3ForCausalLM": _GEMMA3_ROW,
    "Gemma3ForConditionalGeneration": _GEMMA3_ROW,
    "GemmaForCausalLM": FolderFamily("gemma", _LLAMA, defaults=_GEMMA, activations=_GELU_TANH, norms_by_one=True),
    "GraniteForCausalLM": FolderFamily("granite", _LLAMA, _granite, _paired, _RMS),
    "LlamaForCausalLM": FolderFamily("llama", _LLAMA, changes=_paired, defaults=_RMS),
    "MistralForCausalLM": FolderFamily("llama", _LLAMA, changes=_paired, defaults={**_RMS, "num_key_value_heads": 8}),
    "MixtralForCausalLM": FolderFamily(
        "llama", {**_LLAMA, **_MIXTRAL}, _mixtral, lambda config: {**_paired(config), **_ROUTERS},
        {"rms_norm_eps": 1e-5},
    ),
    "Olmo2ForCausalLM": FolderFamily(
        "olmo2", {**ENDS, **ATTENTION, **GATED, **_NORMS_AROUND}, defaults={"rms_norm_eps": 1e-5}
    ),
    "OlmoeForCausalLM": FolderFamily(
        "olmoe", {**_LLAMA, **EXPERTS}, _olmoe, lambda config: _ROUTERS, {"rms_norm_eps": 1e-5}
    ),
    "Phi3ForCausalLM": FolderFamily("phi3", {**_LLAMA, **_PHI3}, defaults={"rms_norm_eps": 1e-5}, has_window=True),
    "Qwen2ForCausalLM": _QWEN2_ROW,
    "Qwen2Model": _QWEN2_ROW,
    "Qwen2MoeForCausalLM": FolderFamily("qwen2moe", {**_LLAMA, **EXPERTS}, _experts, lambda config: _ROUTERS, _RMS),
    "Qwen3ForCausalLM": _QWEN3_ROW,
    "Qwen3Model": _QWEN3_ROW,
    "Qwen3MoeForCausalLM": FolderFamily(
        "qwen3moe", {**_LLAMA, **EXPERTS}, _experts, lambda config: _ROUTERS, {**_RMS, "head_dim": 128}
    ),
    "SmolLM3ForCausalLM": FolderFamily("smollm3", _LLAMA, changes=_paired, defaults=_RMS),
    "T5ForConditionalGeneration": FolderFamily(
        "t5", _t5_names(), _t5, defaults={"layer_norm_epsilon": 1e-6, "tie_word_embeddings": True, "n_positions": 512},
        activations=("relu",), has_rope=False,
    ),
    "StableLmForCausalLM": FolderFamily(
        "stablelm", _LLAMA, defaults={"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25}
    ),
    "Starcoder2ForCausalLM": FolderFamily(
        "starcoder2", _STARCODER2, defaults={"norm_epsilon": 1e-5}, activations=_GELU_TANH
    ),
}  # fmt: skip
