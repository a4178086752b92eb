"""Mixes: the type of each tensor of a language model. The names and choices are those of llama.cpp's quantizer.

Most tensors get the base type. The output, or a tied embedding, gets a better one, and in the _M mixes half of the most
important ones do (attention values, the down projection). Mixes of 2 and 3 bits spend more on all of these, and on the
attention output. If a row is not a multiple of the block size, the type falls back to one with smaller blocks.
Attention values that many query heads share are small and affect all of them: some mixes, and models of 80 layers,
spend more bits on those. Queries, keys and values in one tensor count as values. Source: github.com/ggml-org/llama.cpp,
src/llama-quant.cpp; file types: include/llama.h (`enum llama_ftype`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kernmill.ir import FormatError

from ..formats.gguf_types import TensorType, tensor_type

__all__ = ["MIXES", "OUTPUT_AND_EMBEDDING", "Mix", "fitting_type", "is_weight", "mix_named"]

_LAYER = re.compile(r"blk\.(\d+)\.")
_KEPT = re.compile(r"norm|ffn_gate_inp|position_embd|token_types|ssm_conv1d|rope_|time_mix_|attn_rel_b|altup|laurel")
_SMALLER = {
    "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL",
    **dict.fromkeys(("Q2_K", "Q3_K", "TQ1_0", "TQ2_0"), "Q4_0"),
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), "IQ4_NL"),
    **dict.fromkeys(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"), "F16"), "F16": "F32",
}  # fmt: skip
OUTPUT_AND_EMBEDDING = ("output.weight", "token_embd.weight")
_SHARING = 4  # heads of queries that share values, from which on these get more bits
_LARGE = 80  # layers of a model of 70B


def is_weight(name: str, shape: Sequence[int]) -> bool:
    """True for a matrix, or a stack of them, that gets blocks; norms, routers and small tensors are kept."""
    return name.endswith(".weight") and len(shape) > 1 and _KEPT.search(name) is None


def fitting_type(name: str, shape: Sequence[int]) -> TensorType:
    """Return a type of that name, or one with smaller blocks if the rows are not a multiple of its blocks."""
    kind = tensor_type(name)
    while shape[-1] % kind.values:
        kind = tensor_type(_SMALLER[kind.name])
    return kind


@dataclass(frozen=True, slots=True)
class Mix:
    """A mix: its number in `general.file_type`, the base type, and the exceptions. COPY has neither number nor type:
    all tensors are unchanged, and split files are merged."""

    name: str
    file_type: int | None
    base: str
    output: str = "Q6_K"
    embedding: str | None = None  # where it is not the output as well
    queries: str | None = None  # queries, and keys
    mixed: str | None = None  # attention's way out
    middle: str | None = None  # the feed-forward's ways in, in layers that are not in the first or the last eighth
    down: str | None = None  # the feed-forward's way out
    values: str | None = None  # attention values
    shared_values: str | None = None  # attention values that four or more heads of queries share
    better: str | None = None  # for attention values and the feed-forward's way out, in layers that count
    experts: str | None = None  # the stacks of experts
    early: tuple[str, int] = ("", 8)  # for the feed-forward's way out, in the first eighth of the layers
    early_values: tuple[str, int] = ("", 4)  # for attention values, in the first four layers

    def type_for(
        self, name: str, shape: Sequence[int], layers: int, *, is_tied: bool, sharing: int = 1
    ) -> TensorType | None:
        """Return the type of a tensor, None if it is unchanged. `is_tied`: the embedding is also the output;
        `sharing`: query heads per head of keys and values."""
        if not self.base or not is_weight(name, shape):
            return None
        return fitting_type(self.wanted(name, layers, is_tied=is_tied, sharing=sharing), shape)

    def wanted(self, name: str, layers: int, *, is_tied: bool, sharing: int = 1) -> str:
        """Return the type of a tensor whose rows are multiples of the block size."""
        if name == "output.weight" or (is_tied and name == "token_embd.weight"):
            return self.output
        found = _LAYER.match(name)
        if found is None:
            return (self.embedding if name == "token_embd.weight" else None) or self.base
        layer, part = int(found[1]), name.split(".")[2]
        counts = _counts(layer, layers)
        if self.experts and part.endswith("_exps"):
            return self.experts
        if part in ("attn_v", "attn_qkv"):
            return self._values(layer, layers, sharing, counts)
        if part in ("ffn_down", "ffn_down_exps"):
            early = self.early[0] if layer < layers // self.early[1] else None
            return (self.better if counts else None) or early or self.down or self.base
        if part in ("ffn_gate", "ffn_up", "ffn_gate_exps", "ffn_up_exps"):
            is_middle = layers // 8 <= layer < 7 * layers // 8
            return (self.middle if is_middle else None) or self.base
        return {"attn_output": self.mixed, "attn_q": self.queries, "attn_k": self.queries}.get(part) or self.base

    def _values(self, layer: int, layers: int, sharing: int, counts: bool) -> str:
        """The type of a layer's attention values."""
        early = self.early_values[0] if layer < self.early_values[1] else None
        shared = self.shared_values if sharing >= _SHARING else None
        wanted = (self.better if counts else None) or early or shared or self.values or self.base
        return "Q5_K" if wanted in ("Q3_K", "Q4_K") and layers == _LARGE and sharing > 1 else wanted


def _counts(layer: int, layers: int) -> bool:
    """The first and the last eighth, and every third in between."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


_ROWS = (
    Mix("F32", 0, "F32", output="F32"),
    Mix("F16", 1, "F16", output="F16"),
    Mix("BF16", 32, "BF16", output="BF16"),
    Mix("Q4_0", 2, "Q4_0"),
    Mix("Q4_1", 3, "Q4_1"),
    Mix("Q8_0", 7, "Q8_0", output="Q8_0"),
    Mix("Q5_0", 8, "Q5_0"),
    Mix("Q5_1", 9, "Q5_1"),
    Mix("Q2_K", 10, "Q2_K", mixed="Q3_K", down="Q3_K", values="Q3_K", shared_values="Q4_K"),
    Mix("Q2_K_S", 21, "Q2_K", early=("Q4_K", 8), shared_values="Q4_K"),
    Mix("Q3_K_S", 11, "Q3_K"),
    Mix("Q3_K_M", 12, "Q3_K", mixed="Q4_K", down="Q4_K", values="Q4_K", early=("Q5_K", 16),
        early_values=("Q5_K", 2)),
    Mix("Q3_K_L", 13, "Q3_K", mixed="Q5_K", down="Q5_K", values="Q5_K"),
    Mix("Q4_K_S", 14, "Q4_K", early=("Q5_K", 8), early_values=("Q5_K", 4)),
    Mix("Q4_K_M", 15, "Q4_K", better="Q6_K"),
    Mix("Q5_K_S", 16, "Q5_K"),
    Mix("Q5_K_M", 17, "Q5_K", better="Q6_K"),
    Mix("Q6_K", 18, "Q6_K"),
    Mix("IQ4_NL", 25, "IQ4_NL", early=("Q5_K", 8), shared_values="Q5_K"),
    Mix("IQ4_XS", 30, "IQ4_XS", early=("Q5_K", 8), shared_values="Q5_K"),
    Mix("IQ3_M", 27, "IQ3_S", mixed="Q4_K", early=("Q4_K", 8), values="Q4_K"),
    Mix("IQ3_S", 26, "IQ3_S", shared_values="Q4_K"),
    Mix("IQ3_XS", 22, "IQ3_S", queries="IQ3_XXS", middle="IQ3_XXS", shared_values="Q4_K"),
    Mix("IQ3_XXS", 23, "IQ3_XXS", output="Q5_K", embedding="IQ3_S", queries="IQ2_S", mixed="IQ3_S",
        shared_values="Q4_K"),
    Mix("IQ2_M", 29, "IQ2_S", output="Q5_K", embedding="IQ3_S", mixed="IQ3_S", early=("IQ3_S", 8), values="IQ3_S",
        shared_values="Q4_K"),
    Mix("IQ2_S", 28, "IQ2_XS", output="Q5_K", embedding="IQ3_S", mixed="IQ3_S", early=("IQ3_S", 8), values="IQ3_S",
        shared_values="Q4_K"),
    Mix("IQ2_XS", 20, "IQ2_XS", output="Q5_K", embedding="Q2_K", early=("Q2_K", 8), values="Q2_K",
        shared_values="Q4_K"),
    Mix("IQ2_XXS", 19, "IQ2_XXS", output="Q5_K", embedding="Q2_K", early=("Q2_K", 8), values="Q2_K",
        shared_values="Q4_K"),
    Mix("IQ1_M", 31, "IQ1_M", output="Q5_K", embedding="Q2_K", mixed="IQ2_XXS", early=("Q2_K", 8), values="Q2_K",
        shared_values="Q4_K"),
    Mix("IQ1_S", 24, "IQ1_S", output="Q5_K", embedding="Q2_K", mixed="IQ2_XXS", early=("Q2_K", 8), values="Q2_K",
        shared_values="Q4_K"),
    Mix("MXFP4", 38, "MXFP4", output="Q8_0", embedding="Q8_0"),
    Mix("MXFP4_MOE", 38, "Q8_0", output="Q8_0", experts="MXFP4"),  # as the files of gpt-oss are
    Mix("TQ1_0", 36, "TQ1_0", embedding="Q4_K"),
    Mix("TQ2_0", 37, "TQ2_0", embedding="Q4_K"),
    Mix("COPY", None, ""),
)  # fmt: skip
MIXES: dict[str, Mix] = {mix.name: mix for mix in _ROWS}
_SHORT = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}  # as the quantizer of llama.cpp reads them


def mix_named(name: str) -> Mix:
    """Return the mix of that name, in upper or lower case; Q4_K is Q4_K_M.

    Raises:
        FormatError: unknown name.
    """
    upper = name.upper()
    found = MIXES.get(_SHORT.get(upper, upper))
    if found is None:
        raise FormatError(f"quantize: {name!r}: must be one of {', '.join(MIXES)}.")
    return found
