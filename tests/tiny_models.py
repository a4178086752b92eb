"""Tiny random models, one or more for each architecture: sizes for which every piece counts, and a vocabulary."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kernmill import Tensor
from kernmill.llm.arch import ARCHITECTURES, Config
from kernmill.quant import save

Array = np.ndarray[Any, Any]
W, F, HEADS, KV, CONTEXT = 64, 96, 4, 2, 256
LETTERS = "abcdefghijklmnopqrst\u2581"
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *LETTERS]
SIZES: dict[str, Any] = {
    "context_length": CONTEXT, "embedding_length": W, "block_count": 3, "feed_forward_length": F,
    "attention.head_count": HEADS, "attention.head_count_kv": KV, "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.layer_norm_epsilon": 1e-5, "rope.freq_base": 1000.0,
}  # fmt: skip
VOCABULARY: dict[str, Any] = {
    "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(LETTERS)],
    "tokenizer.ggml.scores": [0.0] * 259 + [-float(n) for n in range(len(LETTERS))],
    "tokenizer.ggml.unknown_token_id": 0, "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.token_type_count": 2,
}  # fmt: skip
EXPERTS = {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 32}
SHARED = EXPERTS | {"expert_shared_count": 1, "expert_shared_feed_forward_length": 32}
SIGMOID = {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 1.5}
OWN_WIDTH = {"feed_forward_length": 32}  # of experts: the file says it so
QKV = r"attn_[qkv]\.bias"
QKVO = r"attn_([qkv]|output)\.bias"
NORM_BIASES = r"(attn|ffn)_norm\.bias"
ALL = rf"{QKVO}|{NORM_BIASES}|ffn_(up|down)\.bias"
OUTPUT_BIAS = ("output_norm.bias",)
PARTIAL = {"rope.dimension_count": 8}


@dataclass(frozen=True)
class Case:
    """A tiny model. `keys`: sizes without the name of the architecture, None removes one. `has`: tensors of layers
    that such a file may have, as a regular expression. `ends`: tensors of the whole model. `extra`: shapes of others.
    `gelu`: llama.cpp reads it from a table of float16. `differs`: what llama.cpp computes in another way, on purpose
    or not: the results are apart, and other tests say what is right."""

    arch: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    has: str = "$^"
    ends: tuple[str, ...] = ()
    extra: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    is_tied: bool = False
    gelu: bool = False
    factor: float = 1.0  # of the norms of queries: unscaled scores of random heads let rounding grow
    differs: str = ""
    lacks: str = "$^"
    without: tuple[int, ...] = ()  # layers without `attn_v`
    fused: tuple[str, ...] = ()  # matrices of several, as converters write them


ENCODER = {"attention.causal": False, "attention.head_count_kv": HEADS, "pooling_type": 1}
BERT_ENDS = ("token_embd_norm.weight", "token_embd_norm.bias", "token_types.weight")
BERT = rf"{QKVO}|(attn_output|layer_output)_norm\.bias|ffn_(up|down)\.bias"
T5 = {"attention.head_count_kv": HEADS, "attention.relative_buckets_count": 16, "attention.key_length": 12,
      "attention.value_length": 12, "block_count": 3, "decoder_block_count": 2,
      "decoder_start_token_id": 1}  # fmt: skip
T5_ENCODER = {
    f"enc.blk.{n}.{name}.weight": shape
    for n in range(3)
    for name, shape in {
        "attn_norm": (W,), "attn_q": (HEADS * 12, W), "attn_k": (HEADS * 12, W), "attn_v": (HEADS * 12, W),
        "attn_o": (W, HEADS * 12), "ffn_norm": (W,), "ffn_up": (F, W), "ffn_down": (W, F),
        **({"attn_rel_b": (16, HEADS)} if n == 0 else {}),
    }.items()
}  # fmt: skip
NO_HEADS = {"attention.head_count": 0, "attention.head_count_kv": 0, "feed_forward_length": 0}
SSM = {"ssm.conv_kernel": 4, "ssm.inner_size": 2 * W, "ssm.state_size": 16, "ssm.time_step_rank": 4}
SSM2 = SSM | {"ssm.time_step_rank": 8, "ssm.group_count": 2}
LATENT = {
    "attention.head_count_kv": 1,
    "attention.kv_lora_rank": 16,
    "attention.q_lora_rank": 24,
    "attention.key_length": 24,
    "attention.value_length": 16,
    "attention.key_length_mla": 20,
    "attention.value_length_mla": 12,
    "rope.dimension_count": 8,
}
GEMMA4 = {
    "attention.sliding_window": 8,
    "attention.sliding_window_pattern": [True, True, False] * 2,
    "block_count": 6,
    "attention.key_length": 32,
    "attention.value_length": 32,
    "attention.key_length_swa": 16,
    "attention.value_length_swa": 16,
    "rope.dimension_count": 32,
    "rope.dimension_count_swa": 16,
    "rope.freq_base_swa": 100.0,
    "final_logit_softcapping": 3.0,
}
GEMMA4_ENDS = {"rope_freqs.weight": (16,)}
DELTA = PARTIAL | {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 4 * 16,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 4,
    "ssm.group_count": 2,
    "block_count": 5,
}
RWKV = NO_HEADS | {"wkv.head_size": 64, "feed_forward_length": F, "token_shift_count": 2, "embedding_length": 2 * W}
NORMED_ENDS = (*OUTPUT_BIAS, "token_embd_norm.weight", "token_embd_norm.bias")
SOME = {"attention.head_count_kv": [0, KV, 0]}
_ROWS: tuple[Case, ...] = (
    Case("apertus", {"xielu": ([0.3, -0.2, 0.5], [0.9, 0.1, 0.4], [0.5, 0.4, 0.6], [-1e-6, -1e-6, -1e-6])}),
    Case("arcee"),
    Case("baichuan", {"block_count": 32}),
    Case("baichuan", {"block_count": 40}),
    Case("bert", ENCODER | {"pooling_type": 2}, BERT, (*BERT_ENDS, "position_embd.weight"), gelu=True),
    Case("bitnet", {}, r"\w+\.scale", is_tied=True),
    Case("bloom", {"attention.head_count_kv": HEADS}, ALL, NORMED_ENDS, gelu=True, fused=("attn_qkv",)),
    Case("chatglm", PARTIAL, QKV, fused=("attn_qkv", "ffn_up")),
    Case("cohere2", {"attention.sliding_window": 8, "logit_scale": 0.5, "block_count": 5}, is_tied=True),
    Case("command-r", {"logit_scale": 0.25}, is_tied=True),
    Case("deepseek2", LATENT | SHARED | SIGMOID | {"leading_dense_block_count": 1, "expert_group_count": 2,
                                          "expert_group_used_count": 1},
         r"exp_probs_b\.bias"),
    Case("deepseek2", LATENT | SHARED | {"attention.q_lora_rank": None, "block_count": 26,
                                         "leading_dense_block_count": 1,
                                         "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                                         "rope.scaling.original_context_length": 64,
                                         "rope.scaling.yarn_log_multiplier": 0.1}),
    Case("dots1", SHARED | SIGMOID | {"leading_dense_block_count": 1, "attention.head_count_kv": HEADS},
         r"attn_[qk]_norm\.weight|exp_probs_b\.bias"),
    Case("ernie4_5", is_tied=True),
    Case("ernie4_5-moe", SHARED | {"leading_dense_block_count": 1, "interleave_moe_layer_step": 1},
         r"exp_probs_b\.bias"),
    Case("eurobert", ENCODER | {"pooling_type": 3}),
    Case("exaone"),
    Case("exaone4", {"attention.sliding_window": 8, "block_count": 64}),
    Case("exaone4", {}),
    Case("falcon", {}, r"attn_norm\.bias", OUTPUT_BIAS, gelu=True, fused=("attn_qkv",)),
    Case("falcon-h1", SSM2, r"ssm_(conv1d\.bias|norm\.weight)"),
    Case("gemma", is_tied=True, gelu=True),
    Case("gemma2", {"attention.sliding_window": 8, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
         is_tied=True, gelu=True),
    Case("gemma3", {"attention.sliding_window": 8, "block_count": 7}, is_tied=True, gelu=True),
    Case("gemma3n", {"attention.sliding_window": 8, "block_count": 25, "feed_forward_length": 512},
         r"attn_(k|v|k_norm)\.weight", is_tied=True,
         gelu=True, factor=0.15,
         extra={"per_layer_token_embd.weight": (len(TOKENS), 25 * 256), "per_layer_model_proj.weight": (25 * 256, W),
                "per_layer_proj_norm.weight": (256,), "altup_proj.weight": (3, W, W),
                "altup_unembd_proj.weight": (3, W, W)}),
    Case("gemma4", GEMMA4 | {"embedding_length_per_layer_input": 24, "attention.shared_kv_layers": 3},
         r"layer_output_scale\.weight|attn_v\.weight", is_tied=True, gelu=True,
         extra=GEMMA4_ENDS | {"per_layer_token_embd.weight": (len(TOKENS), 6 * 24),
                              "per_layer_model_proj.weight": (6 * 24, W), "per_layer_proj_norm.weight": (24,)}),
    Case("gemma4", GEMMA4 | EXPERTS | {"embedding_length_per_layer_input": 0, "attention.head_count_kv": [2, 2, 1] * 2},
         r"attn_v\.weight", is_tied=True, gelu=True, extra=GEMMA4_ENDS, without=(2, 5)),
    Case("gemma-embedding", ENCODER | {"attention.sliding_window": 8, "block_count": 7, "dense_2_feat_in": W,
                                       "dense_2_feat_out": 128, "dense_3_feat_in": 128, "dense_3_feat_out": W},
         extra={"dense_2.weight": (128, W), "dense_3.weight": (W, 128)}, is_tied=True, gelu=True),
    Case("glm4", PARTIAL, QKV, fused=("ffn_up",)),
    Case("glm4moe", SHARED | SIGMOID | PARTIAL | {"leading_dense_block_count": 1},
         rf"{QKV}|attn_[qk]_norm\.weight|exp_probs_b\.bias"),
    Case("gpt2", {"attention.head_count_kv": HEADS}, ALL, (*OUTPUT_BIAS, "position_embd.weight"), is_tied=True,
         gelu=True, fused=("attn_qkv",)),
    Case("gpt-oss", EXPERTS | {"attention.sliding_window": 8, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                               "rope.scaling.original_context_length": 64}),
    Case("gptneox", PARTIAL | {"use_parallel_residual": True, "attention.head_count_kv": HEADS}, ALL, OUTPUT_BIAS,
         gelu=True, fused=("attn_qkv",)),
    Case("granite", {"embedding_scale": 3.0, "residual_scale": 0.4, "attention.scale": 0.3, "logit_scale": 5.0}),
    Case("granitemoe", SHARED | {"embedding_scale": 3.0, "residual_scale": 0.4, "attention.scale": 0.3,
                                 "logit_scale": 5.0} | OWN_WIDTH),
    Case("granitehybrid", SSM2 | SOME | {"embedding_scale": 3.0, "residual_scale": 0.4, "attention.scale": 0.3,
                                         "logit_scale": 5.0}, r"ssm_conv1d\.bias"),
    Case("granitehybrid", SSM2 | SOME | SHARED | OWN_WIDTH | {"rope.scaling.finetuned": False}, r"ssm_conv1d\.bias"),
    Case("hunyuan-dense"),
    Case("hunyuan-moe", SHARED | OWN_WIDTH),
    Case("internlm2"),
    Case("jamba", SSM | SOME),
    Case("jamba", SSM | SOME | {"expert_count": 6, "expert_used_count": 2}),
    Case("jina-bert-v2", ENCODER, BERT + r"|attn_[qk]_norm\.(weight|bias)", BERT_ENDS, gelu=True),
    Case("jina-bert-v3", ENCODER, BERT, BERT_ENDS, gelu=True),
    Case("lfm2", {"shortconv.l_cache": 3, "attention.head_count_kv": [0, KV, 0]}),
    Case("lfm2moe", EXPERTS | SOME | {"expert_gating_func": 2, "shortconv.l_cache": 3, "leading_dense_block_count": 1},
         r"exp_probs_b\.bias"),
    Case("llama"),
    Case("llama", {"expert_count": 6, "expert_used_count": 2}),
    Case("mamba", SSM | NO_HEADS),
    Case("mamba", SSM | NO_HEADS | {"ssm.dt_b_c_rms": True}),
    Case("mamba2", SSM2 | NO_HEADS),
    Case("llama-embed", ENCODER),
    Case("llama4", SHARED | {"expert_used_count": 1, "interleave_moe_layer_step": 2, "block_count": 5},
         r"ffn_(gate|up|down)_shexp\.weight"),
    Case("minicpm", {"embedding_scale": 3.0, "residual_scale": 0.4, "logit_scale": 5.0}),
    Case("minimax-m2", EXPERTS | OWN_WIDTH | PARTIAL | {"expert_gating_func": 2}, r"exp_probs_b\.bias"),
    Case("mistral3", {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                      "rope.scaling.original_context_length": 16, "rope.scaling.yarn_log_multiplier": 1.0,
                      "attention.temperature_scale": 0.3, "expert_count": None}),
    Case("mpt", {"attention.max_alibi_bias": 6.0, "attention.clamp_kqv": 0.8, "attention.head_count": 6,
                 "attention.head_count_kv": 6, "embedding_length": 96}, ALL, OUTPUT_BIAS, gelu=True,
         fused=("attn_qkv",)),
    Case("modern-bert", ENCODER | {"attention.sliding_window": 8, "block_count": 4, "rope.freq_base_swa": 100.0},
         ends=("token_embd_norm.weight",), gelu=True, fused=("attn_qkv", "ffn_up")),
    Case("nemotron", PARTIAL, rf"{QKVO}|{NORM_BIASES}|ffn_(up|down)\.bias", OUTPUT_BIAS),
    Case("nemotron_h", SSM2 | {"attention.head_count_kv": [0, KV, 0, 0], "block_count": 4,
                               "feed_forward_length": [0, 0, F, 0]}, r"ssm_conv1d\.bias|ffn_(up|down)\.bias"),
    Case("nemotron_h_moe", SSM2 | SHARED | SIGMOID | {
        "attention.head_count_kv": [0, KV, 0, 0], "block_count": 4, "feed_forward_length": [0, 0, 32, 0]},
        r"ssm_conv1d\.bias|exp_probs_b\.bias"),
    Case("nomic-bert", ENCODER, r"(attn_output|layer_output)_norm\.bias", BERT_ENDS),
    Case("nomic-bert-moe", ENCODER | {"expert_count": 6, "expert_used_count": 2, "moe_every_n_layers": 2}, BERT,
         BERT_ENDS, gelu=True),
    Case("olmo", {"attention.clamp_kqv": 1.5}, is_tied=True),
    Case("olmo2"),
    Case("olmo2", {"attention.sliding_window": 8, "block_count": 5, "rope.scaling.type": "yarn",
                   "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}),
    Case("olmoe", {"expert_count": 6, "expert_used_count": 2, "attention.head_count_kv": HEADS}),
    Case("orion", {}, NORM_BIASES, OUTPUT_BIAS),
    Case("phi2", PARTIAL, rf"{QKVO}|attn_norm\.bias|ffn_(up|down)\.bias", (*OUTPUT_BIAS, "output.bias"), gelu=True),
    Case("phi3", fused=("attn_qkv", "ffn_up")),
    Case("phimoe", EXPERTS | OWN_WIDTH, rf"{QKVO}|{NORM_BIASES}", (*OUTPUT_BIAS, "output.bias"),
         differs="llama.cpp norms phimoe without subtracting the mean, kernmill subtracts it; not confirmed elsewhere"),
    Case("qwen2"),
    Case("qwen2moe", SHARED, r"ffn_gate_inp_shexp\.weight"),
    Case("qwen2vl", {"rope.dimension_sections": [4, 2, 2, 0]}),
    Case("qwen3"),
    Case("qwen3", {"pooling_type": 3}),
    Case("qwen3moe", EXPERTS),
    Case("qwen3vl", {"rope.dimension_sections": [3, 3, 2, 0], "n_deepstack_layers": 0}),
    Case("qwen3vlmoe", EXPERTS | {"rope.dimension_sections": [3, 3, 2, 0], "n_deepstack_layers": 0}),
    Case("qwen3next", DELTA | SHARED, r"ffn_gate_inp_shexp\.weight"),
    Case("qwen3next", DELTA | SHARED, r"ffn_gate_inp_shexp\.weight|ssm_in\.weight", lacks=r"attn_(qkv|gate)\.weight"),
    Case("qwen35", DELTA | {"rope.dimension_sections": [2, 1, 1, 0]}),
    Case("qwen35moe", DELTA | SHARED | {"rope.dimension_sections": [2, 1, 1, 0], "full_attention_interval": 2},
         r"ffn_gate_inp_shexp\.weight"),
    Case("rwkv6", RWKV | {"time_mix_extra_dim": 8, "time_decay_extra_dim": 12, "rescale_every_n_layers": 2},
         r"time_mix_lerp_fused\.weight", NORMED_ENDS),
    Case("rwkv6", RWKV | {"time_mix_extra_dim": 8, "time_decay_extra_dim": 12}, r"time_mix_lerp_[wkvrg]\.weight",
         NORMED_ENDS),
    Case("rwkv7", RWKV | {"attention.decay_lora_rank": 12, "attention.iclr_lora_rank": 8,
                          "attention.value_residual_mix_lora_rank": 10, "attention.gate_lora_rank": 14},
         r"time_mix_v[012]\.weight", NORMED_ENDS),
    Case("pangu-embedded", {}, QKVO),
    Case("codeshell", {}, ALL, OUTPUT_BIAS, gelu=True),
    Case("seed_oss", {}, QKV),
    Case("smollm3", {"block_count": 5}),
    Case("stablelm", PARTIAL, rf"{QKV}|{NORM_BIASES}", OUTPUT_BIAS),
    Case("starcoder", {"attention.head_count_kv": 1}, ALL, (*OUTPUT_BIAS, "position_embd.weight"), gelu=True,
         fused=("attn_qkv",)),
    Case("starcoder2", {}, ALL, OUTPUT_BIAS, gelu=True),
    Case("t5", T5, ends=("enc.output_norm.weight",), extra=T5_ENCODER),
    Case("t5", T5 | {"block_count": 1, "decoder_block_count": 1}, r"ffn_gate\.weight", ("enc.output_norm.weight",),
         gelu=True, extra={name: shape for name, shape in T5_ENCODER.items() if ".0." in name}
         | {"enc.blk.0.ffn_gate.weight": (F, W)}),
    Case("t5encoder", ENCODER | {"attention.relative_buckets_count": 32, "attention.key_length": 12,
                                 "attention.value_length": 12}, r"ffn_gate\.weight", gelu=True),
    Case("t5encoder", ENCODER | {"attention.relative_buckets_count": 16}),
    Case("xverse"),
)  # fmt: skip


def _names() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for case in _ROWS:
        count = sum(name.split(" ")[0] == case.arch for name in found)
        found[f"{case.arch} {count + 1}" if count else case.arch] = case
    return found


CASES = _names()


def metadata_of(case: Case) -> dict[str, Any]:
    keys = SIZES | dict(case.keys)
    sizes = {f"{case.arch}.{key}": value for key, value in keys.items() if value is not None}
    for name, values in zip(("alpha_n", "alpha_p", "beta", "eps"), sizes.pop(f"{case.arch}.xielu", ()), strict=False):
        sizes[f"xielu.{name}"] = values
    return {"general.architecture": case.arch, **sizes, **VOCABULARY}


def weights_of(case: Case, seed: int = 1) -> dict[str, Array]:
    """Random weights: norms around 1, matrices that keep the size of x, biases that count."""
    config = Config.of(metadata_of(case))
    kind = ARCHITECTURES[case.arch]
    width = config.width
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(TOKENS), width), **case.extra}
    if not case.is_tied and "attention.causal" not in case.keys:
        shapes["output.weight"] = (len(TOKENS), width)
    if kind.output_norm:
        shapes[f"{kind.output_norm}.weight"] = (width,)
    sizes = {"position_embd.weight": (CONTEXT, width), "token_types.weight": (2, width), "output.bias": (len(TOKENS),)}
    shapes |= {name: sizes.get(name, (width,)) for name in case.ends}
    for n in range(config.layers):
        known, needed = kind.names_in(config, n)
        for name, shape in known.items():
            if n in case.without and name == "attn_v.weight":
                continue
            if (name in needed or re.fullmatch(case.has, name)) and not re.fullmatch(case.lacks, name):
                shapes[f"blk.{n}.{name}"] = shape
    chance = np.random.default_rng(seed)
    weights = {kind.named(name): _random(chance, name, shape) for name, shape in shapes.items()}
    weights |= {name: array * np.float32(case.factor) for name, array in weights.items() if "attn_q_norm" in name}
    return _with_fused(weights, {joint: parts for joint, parts in kind.fused if joint in case.fused})


def _with_fused(weights: dict[str, Array], fused: Mapping[str, tuple[str, ...]]) -> dict[str, Array]:
    for joint, parts in fused.items():
        for name in [name for name in weights if re.search(rf"\.{parts[0]}\.(weight|bias)$", name)]:
            layer, end = name.split(f"{parts[0]}.")
            whole = np.concatenate([weights.pop(f"{layer}{part}.{end}") for part in parts], -1 if end == "bias" else -2)
            weights[f"{layer}{joint}.{end}"] = whole
    return weights


def _random(chance: np.random.Generator, name: str, shape: tuple[int, ...]) -> Array:
    if name.endswith("ssm_a"):
        values = -np.exp(0.5 * chance.standard_normal(shape))
    elif re.search(r"\.scale$|output_scale|rope_freqs|norm(?!.*bias)", name):
        values = 1 + 0.25 * chance.standard_normal(shape)
    elif len(shape) == 1 or name.endswith(".bias"):
        values = 0.25 * chance.standard_normal(shape)
    else:
        values = chance.standard_normal(shape) * (1.0 if name.startswith("token_embd") else 1.2 / shape[-1] ** 0.5)
    values = values.reshape(shape[0], 1, 1, -1) if name.endswith("lerp_fused.weight") else values
    return np.asarray(values, np.float32)


def write(case: Case, path: Path, seed: int = 1) -> Path:
    """The model as a GGUF file of floats."""
    save(path, {name: Tensor(array) for name, array in weights_of(case, seed).items()}, metadata_of(case))
    return path


def ranker(path: Path) -> Path:
    """Write a file of a small encoder that ranks documents."""
    case, chance = CASES["bert"], np.random.default_rng(2)
    head = {"cls.output.weight": chance.standard_normal((1, W)).astype(np.float32)}
    keys = {"bert.pooling_type": 4, "tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_sep_token": True,
            "tokenizer.ggml.seperator_token_id": 2}  # fmt: skip
    save(path, {name: Tensor(array) for name, array in (weights_of(case) | head).items()}, metadata_of(case) | keys)
    return path
