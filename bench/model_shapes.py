"""The shapes of models with random weights: real ones, and a few layers of those that are too large.

`SHAPES` has the metadata of each. `ARCHITECTURES` has the rows of `python -m bench.llama --architectures`: files of
about 1 GB, and the tensors that such a file has but not every file of its architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ARCHITECTURES", "SHAPES", "Row"]


@dataclass(frozen=True)
class Row:
    """A file of an architecture. `mix`: as `kernmill quantize` makes it. `may_have`: names of further tensors of a
    layer, as a regular expression. `ends`: further tensors of the whole model, with their rows, 0: a vector."""

    mix: str = ""
    has_output: bool = False
    may_have: str = "$^"
    fused: tuple[str, ...] = ()
    ends: Mapping[str, int] = field(default_factory=dict)
    is_encoder: bool = False


def _of(name: str, sizes: Mapping[str, Any]) -> dict[str, Any]:
    return {"general.architecture": name, **{f"{name}.{key}": value for key, value in sizes.items()}}


_SHARED = {"context_length": 32768, "attention.layer_norm_rms_epsilon": 1e-6, "vocab_size": 32000}
SHAPES: dict[str, dict[str, Any]] = {
    "0.5B": {  # Qwen2.5-0.5B
        "general.architecture": "qwen2", "qwen2.context_length": 32768, "qwen2.embedding_length": 896,
        "qwen2.block_count": 24, "qwen2.feed_forward_length": 4864, "qwen2.attention.head_count": 14,
        "qwen2.attention.head_count_kv": 2, "qwen2.attention.layer_norm_rms_epsilon": 1e-6,
        "qwen2.rope.freq_base": 1e6, "qwen2.vocab_size": 151936,
    },
    "1B": {  # Llama-3.2-1B
        "general.architecture": "llama", "llama.context_length": 131072, "llama.embedding_length": 2048,
        "llama.block_count": 16, "llama.feed_forward_length": 8192, "llama.attention.head_count": 32,
        "llama.attention.head_count_kv": 8, "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 5e5, "llama.rope.dimension_count": 64, "llama.vocab_size": 128256,
    },
    "layers": {  # four of Llama-3.2-1B: rows of whole blocks in every type, little else
        "general.architecture": "llama", "llama.context_length": 131072, "llama.embedding_length": 2048,
        "llama.block_count": 4, "llama.feed_forward_length": 8192, "llama.attention.head_count": 32,
        "llama.attention.head_count_kv": 8, "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 5e5, "llama.rope.dimension_count": 64, "llama.vocab_size": 4096,
    },
    "tiny": {
        "general.architecture": "llama", "llama.context_length": 256, "llama.embedding_length": 256,
        "llama.block_count": 2, "llama.feed_forward_length": 512, "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2, "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": 64, "llama.vocab_size": 512,
    },
    "qwen3moe": _of("qwen3moe", {  # three layers of Qwen3-30B-A3B
        **_SHARED, "embedding_length": 2048, "block_count": 3, "feed_forward_length": 6144,
        "attention.head_count": 32, "attention.head_count_kv": 4, "attention.key_length": 128,
        "attention.value_length": 128, "rope.freq_base": 1e6, "expert_count": 128, "expert_used_count": 8,
        "expert_feed_forward_length": 768,
    }),
    "gpt-oss": _of("gpt-oss", {  # two layers of gpt-oss-20b
        **_SHARED, "embedding_length": 2880, "block_count": 2, "feed_forward_length": 2880,
        "attention.head_count": 64, "attention.head_count_kv": 8, "attention.key_length": 64,
        "attention.value_length": 64, "attention.sliding_window": 128, "rope.freq_base": 150000.0,
        "rope.dimension_count": 64, "rope.scaling.type": "yarn", "rope.scaling.factor": 32.0,
        "rope.scaling.original_context_length": 4096, "expert_count": 32, "expert_used_count": 4,
        "expert_feed_forward_length": 2880,
    }),
    "deepseek2": _of("deepseek2", {  # four layers near DeepSeek-V2-Lite, the first one dense
        **_SHARED, "embedding_length": 2048, "block_count": 4, "feed_forward_length": 10944,
        "leading_dense_block_count": 1, "attention.head_count": 16, "attention.head_count_kv": 1,
        "attention.kv_lora_rank": 512, "attention.q_lora_rank": 1536,
        "attention.key_length": 576, "attention.value_length": 512,
        "attention.key_length_mla": 192, "attention.value_length_mla": 128, "rope.freq_base": 10000.0,
        "rope.dimension_count": 64, "expert_count": 64, "expert_used_count": 6, "expert_shared_count": 2,
        "expert_feed_forward_length": 1408, "expert_weights_scale": 1.0,
    }),
    "mamba2": _of("mamba2", {  # Mamba2-1.3B
        **_SHARED, "embedding_length": 2048, "block_count": 48, "feed_forward_length": 0, "attention.head_count": 0,
        "vocab_size": 50288, "ssm.conv_kernel": 4, "ssm.inner_size": 4096, "ssm.state_size": 128,
        "ssm.time_step_rank": 64, "ssm.group_count": 1,
    }),
    "qwen35": _of("qwen35", {  # the layers of Qwen3.5-2B
        **_SHARED, "embedding_length": 2048, "block_count": 24, "feed_forward_length": 6144,
        "attention.head_count": 8, "attention.head_count_kv": 2, "attention.key_length": 256,
        "attention.value_length": 256, "rope.freq_base": 1e7, "rope.dimension_count": 64,
        "rope.dimension_sections": [11, 11, 10, 0], "ssm.conv_kernel": 4, "ssm.inner_size": 2048,
        "ssm.state_size": 128, "ssm.time_step_rank": 16, "ssm.group_count": 16, "full_attention_interval": 4,
        "vocab_size": 151936,
    }),
    "bert": _of("bert", {  # BERT base, such as BGE and E5
        "context_length": 512, "embedding_length": 768, "block_count": 12, "feed_forward_length": 3072,
        "attention.head_count": 12, "attention.layer_norm_epsilon": 1e-12, "attention.causal": False,
        "pooling_type": 1, "vocab_size": 30522,
    }) | {"tokenizer.ggml.token_type_count": 2},
}  # fmt: skip
ARCHITECTURES: dict[str, Row] = {
    "qwen3moe": Row("Q4_K_M", has_output=True),
    "gpt-oss": Row("MXFP4_MOE", has_output=True),
    "deepseek2": Row("Q4_K_M", has_output=True),
    "mamba2": Row("Q4_K_M", may_have=r"ssm_conv1d\.bias"),
    "qwen35": Row("Q4_K_M"),
    "bert": Row(
        "F16", may_have=r"(attn_([qkv]|output)|(attn_output|layer_output)_norm|ffn_(up|down))\.bias", is_encoder=True,
        ends={"token_embd_norm.weight": 0, "token_embd_norm.bias": 0, "token_types.weight": 2,
              "position_embd.weight": 512},
    ),
}  # fmt: skip
