"""Folders that `transformers` writes, opened directly: the same logits, where it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from kernmill.llm import Model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="a peer, no dependency of ours")


class Case(NamedTuple):
    peer: str  # the beginning of the names of its classes
    options: dict[str, Any]
    kind: str = "ForCausalLM"


SIZES = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 128, "pad_token_id": 0,
}  # fmt: skip
SHARED = {"num_key_value_heads": 2}
MOE = SHARED | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
GEMMA = SHARED | {"head_dim": 16, "num_hidden_layers": 7, "sliding_window": 8, "query_pre_attn_scalar": 16}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.1, 1.3, 1.5], "factor": 4.0,
            "long_factor": [1.0, 2.0, 4.0, 9.0], "original_max_position_embeddings": 32}  # fmt: skip
T5 = {"d_model": 32, "d_kv": 12, "d_ff": 48, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4,
      "decoder_start_token_id": 0}  # fmt: skip
LATENT = {"kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 4,
          "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 1, "first_k_dense_replace": 1,
          "routed_scaling_factor": 1.5, "num_key_value_heads": 4}  # fmt: skip
HALF = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
CASES = [
    Case("Llama", SHARED | {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    Case("Mistral", SHARED | {"head_dim": 16, "sliding_window": None}),
    Case("Mixtral", SHARED | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    Case("Qwen2", SHARED | {"rope_parameters": YARN}),
    Case("Qwen3", SHARED | {"head_dim": 16}),
    Case("Qwen2Moe", MOE | {"shared_expert_intermediate_size": 24, "norm_topk_prob": False}),
    Case("Qwen3Moe", MOE | {"head_dim": 16, "norm_topk_prob": True}),
    Case("Gemma", SHARED | {"head_dim": 16}),
    Case("Gemma2", GEMMA | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}),
    Case("Gemma3Text", GEMMA),
    Case("Phi3", SHARED | {"sliding_window": 10, "bos_token_id": 1, "eos_token_id": 1}),
    Case("Phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 32, "sliding_window": None,
                  "bos_token_id": 1, "eos_token_id": 1}),
    Case("GPTNeoX", {"rope_parameters": HALF, "hidden_act": "gelu_new"}),
    Case("GPT2", {"n_inner": 48}, "LMHeadModel"),
    Case("Bert", {"hidden_act": "gelu_new"}, "Model"),
    Case("T5", T5 | {"feed_forward_proj": "gated-gelu"}, "ForConditionalGeneration"),
    Case("T5", T5 | {"tie_word_embeddings": False}, "ForConditionalGeneration"),
    Case("Granite", SHARED | {"attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.5,
                              "logits_scaling": 2.0}),
    Case("Olmo2", SHARED),
    Case("Olmoe", SHARED | {"num_experts": 4, "num_experts_per_tok": 2}),
    Case("SmolLM3", SHARED | {"num_hidden_layers": 5}),
    Case("StableLm", SHARED),
    Case("Starcoder2", SHARED | {"hidden_act": "gelu_new", "use_bias": True}),
    Case("Phi", {"num_key_value_heads": 4, "hidden_act": "gelu_new"}),
    Case("Cohere", SHARED | {"logit_scale": 0.3, "tie_word_embeddings": True}),
    Case("Cohere2", SHARED | {"logit_scale": 0.3, "tie_word_embeddings": True, "sliding_window": 8, "head_dim": 8,
                              "num_hidden_layers": 5}),
    Case("GptOss", SHARED | {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8,
                             "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    Case("DeepseekV2", LATENT | {"topk_method": "greedy", "n_group": 1, "topk_group": 1, "q_lora_rank": None}),
    Case("DeepseekV3", LATENT | {"q_lora_rank": 24, "n_group": 2, "topk_group": 1, "norm_topk_prob": True}),
]  # fmt: skip


def build(case: Case) -> Any:
    """Their model, with random weights."""
    torch.manual_seed(1)
    config = getattr(transformers, case.peer + "Config")(**SIZES | case.options, attn_implementation="eager")
    model = getattr(transformers, case.peer.removesuffix("Text") + case.kind)(config).eval().float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            is_norm = weight.ndim == 1 and name.endswith("weight") and "Gemma" not in case.peer
            weight.copy_(torch.randn_like(weight) * (0.3 if weight.ndim == 1 else weight.shape[-1] ** -0.5) + is_norm)
    return model


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.peer)
@pytest.mark.filterwarnings("ignore")
def test_the_logits_of_a_saved_folder_are_theirs(case: Case, tmp_path: Path) -> None:
    model = build(case)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    ids = torch.randint(0, 50, (1, 40))
    with torch.no_grad():
        has_source = case.kind == "ForConditionalGeneration"
        found = model(input_ids=ids[:, :11], decoder_input_ids=ids) if has_source else model(ids)
    with Model.from_gguf(tmp_path, block=16) as ours:
        if has_source:
            ours.encode(ids[0, :11].tolist())
        if case.kind == "Model":
            expected = found.last_hidden_state[0].mean(0).numpy()
            logits = ours.embed(ids[0].tolist(), normalize=False).numpy()
        else:
            expected, logits = found.logits[0].numpy(), ours.logits(ids[0].tolist()).numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-4)
