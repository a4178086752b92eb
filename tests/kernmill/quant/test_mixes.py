"""Mixes: which tensor gets which type."""

from __future__ import annotations

import pytest

from kernmill import FormatError
from kernmill.quant.mixes import MIXES, mix_named


def kind(
    mix: str, name: str, shape: tuple[int, ...] = (512, 512), layers: int = 16, tied: bool = False, sharing: int = 1
) -> str | None:
    found = MIXES[mix].type_for(name, shape, layers, is_tied=tied, sharing=sharing)
    return None if found is None else found.name


def test_q4_k_m() -> None:
    assert kind("Q4_K_M", "blk.3.attn_q.weight") == "Q4_K"
    better = [layer for layer in range(16) if kind("Q4_K_M", f"blk.{layer}.ffn_down.weight") == "Q6_K"]
    assert better == [0, 1, 4, 7, 10, 13, 14, 15]
    assert better == [layer for layer in range(16) if kind("Q4_K_M", f"blk.{layer}.attn_v.weight") == "Q6_K"]
    assert kind("Q4_K_M", "output.weight") == "Q6_K"
    assert [kind("Q4_K_M", "token_embd.weight", tied=tied) for tied in (False, True)] == ["Q4_K", "Q6_K"]


def test_others() -> None:
    names = ("blk.0.attn_v.weight", "blk.2.attn_v.weight", "blk.2.attn_qkv.weight")
    assert [kind("Q5_K_M", name) for name in names] == ["Q6_K", "Q5_K", "Q5_K"]
    assert [kind("Q4_K_S", f"blk.{n}.attn_v.weight") for n in (3, 4)] == ["Q5_K", "Q4_K"]
    assert [kind("Q4_K_S", f"blk.{n}.ffn_down.weight") for n in (1, 2)] == ["Q5_K", "Q4_K"]
    assert [kind(mix, "output.weight") for mix in ("Q8_0", "Q4_0", "F16")] == ["Q8_0", "Q6_K", "F16"]


GRIDS = {  # attention values, shared by two and by four; queries; attention's way out; up; down, first; embedding
    "IQ1_S": ("Q2_K", "Q4_K", "IQ1_S", "IQ2_XXS", "IQ1_S", "IQ1_S", "Q2_K", "Q2_K"),
    "IQ2_XS": ("Q2_K", "Q4_K", "IQ2_XS", "IQ2_XS", "IQ2_XS", "IQ2_XS", "Q2_K", "Q2_K"),
    "IQ2_M": ("IQ3_S", "Q4_K", "IQ2_S", "IQ3_S", "IQ2_S", "IQ2_S", "IQ3_S", "IQ3_S"),
    "IQ3_XXS": ("IQ3_XXS", "Q4_K", "IQ2_S", "IQ3_S", "IQ3_XXS", "IQ3_XXS", "IQ3_XXS", "IQ3_S"),
    "IQ3_XS": ("IQ3_S", "Q4_K", "IQ3_XXS", "IQ3_S", "IQ3_XXS", "IQ3_S", "IQ3_S", "IQ3_S"),
    "IQ3_M": ("Q4_K", "Q4_K", "IQ3_S", "Q4_K", "IQ3_S", "IQ3_S", "Q4_K", "IQ3_S"),
    "Q2_K_S": ("Q2_K", "Q4_K", "Q2_K", "Q2_K", "Q2_K", "Q2_K", "Q4_K", "Q2_K"),
}


@pytest.mark.parametrize("mix", GRIDS)
def test_mixes_with_codebooks(mix: str) -> None:
    """As llama.cpp's quantizer chooses them with an importance matrix."""
    parts = [kind(mix, f"blk.9.{part}.weight") for part in ("attn_q", "attn_output", "ffn_up", "ffn_down")]
    values = [kind(mix, "blk.9.attn_v.weight", sharing=count) for count in (2, 4)]
    first, embedding = kind(mix, "blk.0.ffn_down.weight"), kind(mix, "token_embd.weight")
    assert (*values, *parts, first, embedding) == GRIDS[mix]
    assert kind(mix, "output.weight") == ("Q6_K" if mix in ("IQ3_XS", "IQ3_M", "Q2_K_S") else "Q5_K")
    assert kind(mix, "blk.9.attn_q.weight", (8, 96)) in ("IQ4_NL", "Q4_0")


LOW = {  # attention values, shared by two and by four heads; attention's way out; the feed-forward's; all in one
    "Q2_K": ("Q3_K", "Q4_K", "Q3_K", "Q3_K", "Q3_K"),
    "Q3_K_S": ("Q3_K", "Q3_K", "Q3_K", "Q3_K", "Q3_K"),
    "Q3_K_M": ("Q4_K", "Q4_K", "Q4_K", "Q4_K", "Q4_K"),
    "Q3_K_L": ("Q5_K", "Q5_K", "Q5_K", "Q5_K", "Q5_K"),
}


@pytest.mark.parametrize("mix", LOW)
def test_mixes_of_two_and_three_bits(mix: str) -> None:
    """As llama.cpp's quantizer chose them for random files."""
    parts = ("attn_v", "attn_output", "ffn_down", "attn_qkv")
    values, mixed, down, fused = (kind(mix, f"blk.9.{part}.weight", sharing=2) for part in parts)
    assert (values, kind(mix, "blk.9.attn_v.weight", sharing=4), mixed, down, fused) == LOW[mix]
    base = "Q2_K" if mix == "Q2_K" else "Q3_K"
    assert {kind(mix, f"blk.0.{part}.weight") for part in ("attn_q", "attn_k", "ffn_gate", "ffn_up")} == {base}
    assert [kind(mix, name) for name in ("output.weight", "token_embd.weight")] == ["Q6_K", base]
    assert kind(mix, "blk.9.attn_q.weight", (8, 96)) == "Q4_0"


def test_the_first_layers_of_q3_k_m() -> None:
    found = [kind("Q3_K_M", f"blk.{n}.attn_v.weight", layers=32) for n in range(4)]
    assert found == ["Q5_K", "Q5_K", "Q4_K", "Q4_K"]
    found = [kind("Q3_K_M", f"blk.{n}.ffn_down.weight", layers=32) for n in range(4)]
    assert found == ["Q5_K", "Q5_K", "Q4_K", "Q4_K"]
    assert kind("Q3_K_M", "blk.0.ffn_down.weight", layers=15) == "Q4_K"  # no whole sixteenth
    assert [kind(mix, "blk.9.attn_v.weight", layers=80, sharing=8) for mix in LOW] == ["Q5_K"] * 4


@pytest.mark.parametrize("mix", MIXES)
def test_queries_keys_and_values_in_one_tensor_count_as_values(mix: str) -> None:
    """As llama.cpp's quantizer chose them for random phi3 files; it was a type of its own for all layers."""
    for layers, sharing in ((8, 1), (8, 4), (80, 8)):
        names = ([f"blk.{n}.{part}.weight" for n in range(layers)] for part in ("attn_v", "attn_qkv"))
        values, fused = ([kind(mix, name, layers=layers, sharing=sharing) for name in part] for part in names)
        assert values == fused


@pytest.mark.parametrize("mix", ["TQ1_0", "TQ2_0"])
def test_ternary_mixes_keep_the_embedding_in_four_bits(mix: str) -> None:
    assert [kind(mix, "token_embd.weight", tied=tied) for tied in (False, True)] == ["Q4_K", "Q6_K"]
    assert [kind(mix, "blk.0.attn_v.weight", shape) for shape in ((8, 256), (8, 96))] == [mix, "Q4_0"]


@pytest.mark.parametrize("mix", ["IQ4_NL", "IQ4_XS"])
def test_values_that_many_heads_share_and_the_first_way_out_get_more_bits(mix: str) -> None:
    assert [kind(mix, f"blk.{n}.ffn_down.weight") for n in (0, 1, 2)] == ["Q5_K", "Q5_K", mix]
    values = [kind(mix, "blk.9.attn_v.weight", sharing=sharing) for sharing in (1, 3, 4, 8)]
    assert values == [mix, mix, "Q5_K", "Q5_K"]
    assert kind(mix, "blk.0.ffn_down.weight", (512, 96)) == "Q5_1"  # no row of whole blocks of 256
    assert kind("Q4_K_M", "blk.2.attn_v.weight", sharing=8) == "Q4_K"


def test_values_of_a_model_of_70b() -> None:
    found = {mix: kind(mix, "blk.10.attn_v.weight", layers=80, sharing=8) for mix in ("Q4_K_S", "Q4_K_M", "Q4_0")}
    assert found == {"Q4_K_S": "Q5_K", "Q4_K_M": "Q5_K", "Q4_0": "Q4_0"}
    assert kind("Q4_K_M", "blk.10.attn_v.weight", layers=80) == "Q4_K"  # every head has values of its own
    assert kind("Q4_K_M", "blk.10.ffn_down.weight", layers=80, sharing=8) == "Q4_K"


def test_what_stays() -> None:
    for name in ("blk.0.attn_norm.weight", "output_norm.weight", "blk.0.ffn_gate_inp.weight", "blk.0.attn_q.bias"):
        assert kind("Q4_0", name) is None
    assert kind("Q4_0", "blk.0.attn_q.weight", (512,)) is None


def test_rows_that_are_no_whole_blocks() -> None:
    fallen = {mix: kind(mix, "blk.3.attn_q.weight", (8, 896)) for mix in ("Q4_K_S", "Q5_K_S", "Q6_K", "IQ4_XS")}
    assert fallen == {"Q4_K_S": "Q5_0", "Q5_K_S": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL"}
    assert kind("Q4_0", "blk.0.attn_q.weight", (8, 33)) == "F16"


def test_numbers_and_names() -> None:
    assert mix_named("q4_k_m") is MIXES["Q4_K_M"]
    with pytest.raises(FormatError, match=r"quantize: 'Q3': must be one of F32, F16, BF16, "):
        mix_named("Q3")
    package = pytest.importorskip("gguf")
    theirs = {member.name.removeprefix("MOSTLY_"): member.value for member in package.LlamaFileType}
    theirs |= {"F32": theirs["ALL_F32"], "MXFP4": theirs["MXFP4_MOE"]}
    assert {mix.name: mix.file_type for mix in MIXES.values() if mix.name != "COPY"}.items() <= theirs.items()


def test_names_as_people_type_them() -> None:
    """Q4_K was no mix."""
    found = [mix_named(name).name for name in ("Q3_K", "q4_k", "Q5_K", "bf16", "f32", "copy")]
    assert found == ["Q3_K_M", "Q4_K_M", "Q5_K_M", "BF16", "F32", "COPY"]


def test_mixes_of_one_type() -> None:
    names = ("blk.0.attn_v.weight", "blk.9.ffn_down.weight", "output.weight", "token_embd.weight")
    for mix in ("F32", "F16", "BF16"):
        assert [kind(mix, name) for name in names] == [mix] * 4
    assert [kind("MXFP4", name) for name in names] == ["MXFP4", "MXFP4", "Q8_0", "Q8_0"]
    assert kind("MXFP4", names[0], (8, 33)) == "F16"
    assert [kind("COPY", name) for name in names] == [None] * 4
