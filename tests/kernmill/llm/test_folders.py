"""Folders of Hugging Face models: their logits are those of a GGUF file with the same weights, and their ids those of
the package that wrote tokenizer.json. tests/test_transformers_folders.py compares with the models of `transformers`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import FormatError
from kernmill.commands.cli import main
from kernmill.formats import gguf, safetensors
from kernmill.ir import DType, dtypes
from kernmill.llm import Model, folders
from kernmill.llm.tokenizer import Tokenizer
from kernmill.quantize import run as quantize
from tests.tiny_models import CASES, weights_of, write

tokenizers = pytest.importorskip("tokenizers")

Array = np.ndarray[Any, Any]
IDS = [1, 70, 80, 90, 100, 110, 75, 200]
SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 1000.0,
}  # fmt: skip
ENDS = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight"}  # fmt: skip
NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate", "ffn_gate_exps": "mlp.experts.{e}.gate_proj", "ffn_up_exps": "mlp.experts.{e}.up_proj",
    "ffn_down_exps": "mlp.experts.{e}.down_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
}  # fmt: skip


def halves(rows: Array, heads: int) -> Array:
    """Rows of a head as the folder has them: those that are rotated together are half a head apart."""
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def tensors_of(name: str) -> Iterator[tuple[str, Array]]:
    """The weights of a tiny model under the names of a folder."""
    for key, array in weights_of(CASES[name]).items():
        if key in ENDS:
            yield ENDS[key], array
            continue
        _, layer, stem, end = key.split(".")
        if name == "llama" and stem in ("attn_q", "attn_k"):
            array = halves(array, 4 if stem == "attn_q" else 2)
        ours = f"model.layers.{layer}.{NAMES[stem]}.{end}"
        if "{e}" in ours:
            yield from ((ours.format(e=e), one) for e, one in enumerate(array))
        else:
            yield ours, array


def bits(array: Array, dtype: DType) -> memoryview:
    if dtype is dtypes.bfloat16:
        array = (np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return memoryview(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)


def folder_of(path: Path, name: str, *, parts: int = 1, dtype: DType = dtypes.float32, **config: Any) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(SIZES | config))
    tensors = {key: (dtype, array.shape, bits(array, dtype)) for key, array in tensors_of(name)}
    if parts == 1:
        safetensors.write(path / "model.safetensors", tensors)
        return path
    weight_map = {key: f"model-{n % parts + 1:05}-of-{parts:05}.safetensors" for n, key in enumerate(tensors)}
    for file in set(weight_map.values()):
        safetensors.write(path / file, {key: tensors[key] for key, one in weight_map.items() if one == file})
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return path


LLAMA: Any = {"architectures": ["LlamaForCausalLM"]}
MOE: Any = {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 6, "num_experts_per_tok": 2, "head_dim": 16,
       "moe_intermediate_size": 32, "norm_topk_prob": True}  # fmt: skip


@pytest.mark.parametrize(("name", "parts", "config"), [("llama", 3, LLAMA), ("qwen3moe", 1, MOE)])
def test_a_folder_computes_what_its_gguf_file_does(tmp_path: Path, name: str, parts: int, config: Any) -> None:
    with (
        Model.from_gguf(write(CASES[name], tmp_path / "a.gguf"), tokenizer=None, block=16) as file,
        Model.from_gguf(folder_of(tmp_path / "f", name, parts=parts, **config), block=16) as folder,
    ):
        np.testing.assert_array_equal(folder.logits(IDS).numpy(), file.logits(IDS).numpy())


GPT_OSS: Any = {
    "architectures": ["GptOssForCausalLM"], "quantization_config": {"quant_method": "mxfp4"}, "head_dim": 16,
    "num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 32, "sliding_window": 8,
}  # fmt: skip


def packed(blocks: Array) -> dict[str, Array]:
    """Blocks (experts, rows, blocks, 17) as the folder of gpt-oss has them: scales apart, neighbours in one byte."""
    codes = np.stack([blocks[..., 1:] & 15, blocks[..., 1:] >> 4], -2).reshape(*blocks.shape[:-1], 32)
    return {"blocks": codes[..., ::2] | codes[..., 1::2] << 4, "scales": blocks[..., 0]}


@pytest.mark.parametrize("lost", ["", "down_proj_scales"])
def test_packed_experts_of_a_folder_are_those_of_a_gguf_file(tmp_path: Path, lost: str) -> None:
    chance = np.random.default_rng(1)
    gate, up, down = (chance.integers(0, 256, (6, rows, n, 17), np.uint8) for rows, n in ((32, 2), (32, 2), (64, 1)))
    begin, joined = "model.layers.0.mlp.experts.", np.stack([gate, up], 2).reshape(6, 64, 2, 17)
    bias = chance.standard_normal((6, 64)).astype(np.float32)
    tensors = {"model.embed_tokens.weight": bias, f"{begin}gate_up_proj_bias": bias}
    for name, blocks in (("gate_up_proj", joined), ("down_proj", down)):
        tensors |= {f"{begin}{name}_{part}": array for part, array in packed(blocks).items()}
    tensors = {name: array for name, array in tensors.items() if not lost or lost not in name}
    kinds = {name: dtypes.uint8 if array.dtype == np.uint8 else dtypes.float32 for name, array in tensors.items()}
    (tmp_path / "config.json").write_text(json.dumps(SIZES | GPT_OSS))
    safetensors.write(
        tmp_path / "model.safetensors",
        {name: (kinds[name], array.shape, bits(array, kinds[name])) for name, array in tensors.items()},
    )
    if lost:
        with pytest.raises(FormatError, match="down_proj: blocks and scales of shapes"):
            folders.read(tmp_path)
        return
    file = folders.read(tmp_path)
    for stem, expected in (("gate", gate), ("up", up), ("down", down)):
        assert bytes(file.values(f"blk.0.ffn_{stem}_exps.weight")) == expected.tobytes()
    assert file.entries["blk.0.ffn_down_exps.weight"].shape == (6, 64, 32)
    assert bytes(file.values("blk.0.ffn_up_exps.bias")) == bias[:, 1::2].tobytes()


def test_a_folder_in_bfloat16_is_quantized_while_it_loads_as_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path / "f", "llama", dtype=dtypes.bfloat16, **LLAMA)
    assert main(["quantize", str(folder), str(tmp_path / "q8.gguf"), "Q8_0"]) == 0
    assert main(["show", str(folder)]) == 0
    assert "general.architecture" in capsys.readouterr().out
    with (
        Model.from_gguf(tmp_path / "q8.gguf", tokenizer=None, block=16) as file,
        Model.from_gguf(folder, quantize="Q8_0", block=16) as now,
    ):
        np.testing.assert_array_equal(now.logits(IDS).numpy(), file.logits(IDS).numpy())
    assert {e.type.name for e in gguf.read(tmp_path / "q8.gguf").entries.values()} == {"Q8_0", "F32"}


def test_a_quantized_load_of_a_file_is_that_of_the_quantized_file(tmp_path: Path) -> None:
    path = write(CASES["qwen3moe"], tmp_path / "a.gguf")
    quantize(path, tmp_path / "b.gguf", "Q4_0", report=lambda _: None)
    with (
        Model.from_gguf(path, quantize="Q4_0", tokenizer=None, block=16) as now,
        Model.from_gguf(tmp_path / "b.gguf", tokenizer=None, block=16) as file,
    ):
        np.testing.assert_array_equal(now.logits(IDS).numpy(), file.logits(IDS).numpy())


def _no_config(path: Path) -> None:
    (path / "config.json").unlink()


def _no_weights(path: Path) -> None:
    (path / "model.safetensors").rename(path / "pytorch_model.bin")


def _changed(**values: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | values))

    return change


def _extra(path: Path) -> None:
    one = np.zeros((4, 4), np.float32)
    tensors = {key: (dtypes.float32, array.shape, bits(array, dtypes.float32)) for key, array in tensors_of("llama")}
    extra = {"model.layers.0.new_part.weight": (dtypes.float32, one.shape, bits(one, dtypes.float32))}
    safetensors.write(path / "model.safetensors", tensors | extra)


def _torn_json(path: Path) -> None:
    (path / "config.json").write_text('{"hidden_size": ')


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_no_config, "is a folder without config.json"),
        (_torn_json, "is not valid JSON"),
        (_no_weights, "it has no model.safetensors .* It has 'pytorch_model.bin'"),
        (_changed(architectures=["LlamaForCausalML"]), "names 'LlamaForCausalML', .* The nearest is LlamaForCausalLM"),
        (_changed(architectures=["Mamba2ForCausalLM"]), "It opens BertForMaskedLM, .* convert_hf_to_gguf"),
        (_changed(architectures=None), "names None, which kernmill does not open"),
        (_changed(hidden_act="tanh"), "the activation is 'tanh', and llama computes silu"),
        (_changed(hidden_size="64"), "hidden_size is '64', not an integer"),
        (_changed(hidden_size=32), "has shape .* and a llama model of these sizes needs"),
        (_changed(num_attention_heads=None), "num_attention_heads is missing, and it is required"),
        (_changed(rope_scaling={"rope_type": "new"}), "the rope type is 'new', which is unknown"),
        (_changed(rope_scaling={"rope_type": "linear", "factor": -1}), "factor of the rope is -1, not a positive"),
        (_changed(quantization_config={"quant_method": "gptq"}), "the weights are quantized by 'gptq'"),
        (_extra, "tensor model.layers.0.new_part.weight is not part of llama"),
    ],
)
def test_a_folder_that_cannot_be_run_is_refused_in_a_sentence(
    tmp_path: Path, change: Callable[[Path], None], words: str
) -> None:
    folder = folder_of(tmp_path / "f", "llama", **LLAMA)
    change(folder)
    with pytest.raises(FormatError, match=words) as found:
        Model.from_gguf(folder)
    assert str(tmp_path) in str(found.value)
    assert "\n" not in str(found.value)


# --- vocabularies ----------------------------------------------------------------------------------------------------
TEXTS = [
    "Hello world, it's 1234567 tests!  two  spaces", "\u041f\u0440\u0438\u0432\u0435\u0442, \u4f60\u597d \u3053 ok",
    "  lead and trail  ", "", "CamelCase x=y+1; a_b", "<s>not special</s> a", "\U0001f600 \u00e9t\u00e9",
]  # fmt: skip
LESSON = ["the cat sat on the mat, and it's 1234 tests! x = y + 1;",
          "\u041f\u0440\u0438\u0432\u0435\u0442 \u4f60\u597d "
          "\u3053\u3093 \u00e9t\u00e9 Hello world not special lead trail spaces CamelCase"] * 8  # fmt: skip
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
FEW = ["<s>", "</s>", "<unk>"]


def _begins(number: int = 0) -> Any:
    return tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", number)])


def _byte_level() -> Any:
    built = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=False))
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(QWEN2), "isolated")
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, byte_level])
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, special_tokens=FEW, initial_alphabet=letters)
    built.train_from_iterator(LESSON, trainer)
    built.post_processor = _begins()
    return built


def _spaced() -> Any:
    built = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    steps = [tokenizers.normalizers.Prepend("\u2581"), tokenizers.normalizers.Replace(" ", "\u2581")]
    built.normalizer = tokenizers.normalizers.Sequence(steps)
    every = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    built.train_from_iterator(LESSON, tokenizers.trainers.BpeTrainer(vocab_size=460, special_tokens=every))
    parts = json.loads(built.to_str())
    parts["added_tokens"] = parts["added_tokens"][:3]
    built = tokenizers.Tokenizer.from_str(json.dumps(parts))
    built.post_processor = _begins(1)
    return built


def _unigram() -> Any:
    built = tokenizers.Tokenizer(tokenizers.models.Unigram())
    pre = tokenizers.pre_tokenizers
    built.pre_tokenizer = pre.Sequence([pre.WhitespaceSplit(), pre.Metaspace()])
    trainer = tokenizers.trainers.UnigramTrainer(vocab_size=120, special_tokens=FEW, unk_token="<unk>")
    built.train_from_iterator(LESSON, trainer)
    built.post_processor = tokenizers.processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    return built


def _word_pieces() -> Any:
    built = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    built.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    built.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    built.train_from_iterator(LESSON, tokenizers.trainers.WordPieceTrainer(vocab_size=300, special_tokens=special))
    around = [("[CLS]", 2), ("[SEP]", 3)]
    built.post_processor = tokenizers.processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=around)
    return built


def with_vocabulary(path: Path, built: Any, **settings: Any) -> Path:
    built.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


@pytest.mark.parametrize("kind", [_byte_level, _spaced, _unigram, _word_pieces])
def test_the_ids_of_a_folder_are_those_of_its_tokenizer_json(tmp_path: Path, kind: Callable[[], Any]) -> None:
    built = kind()
    names = {"eos_token": "</s>", "cls_token": "[CLS]", "sep_token": {"content": "[SEP]"}, "chat_template": "{{ x }}"}
    metadata = folders.read(with_vocabulary(folder_of(tmp_path / "f", "llama", **LLAMA), built, **names)).metadata
    ours = Tokenizer(metadata)
    assert metadata["tokenizer.chat_template"] == "{{ x }}"
    for text in TEXTS:
        assert ours.encode(text, parse_special=True) == built.encode(text).ids, text
        assert (
            ours.encode(text, add_special=False, parse_special=True) == built.encode(text, add_special_tokens=False).ids
        )


def test_a_folder_without_a_vocabulary_runs_on_ids(tmp_path: Path) -> None:
    with Model.from_gguf(folder_of(tmp_path / "f", "llama", **LLAMA), block=16) as model:
        assert model.tokenizer is None
        assert len(list(model.generate([1, 5], max_tokens=2))) == 2


def _no_merges(parts: Any) -> None:
    parts["model"]["merges"] = [1, 2]


def _other_words(parts: Any) -> None:
    parts["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": "[abc]+"}


def _other_model(parts: Any) -> None:
    parts["model"]["type"] = "WordLevel"


def _normalizer(parts: Any) -> None:
    parts["normalizer"] = {"type": "Lowercase"}


def _far_id(parts: Any) -> None:
    parts["added_tokens"][0]["id"] = 9_999_999


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_no_merges, "model.merges is not a list of pairs"),
        (_other_words, "by rules that kernmill does not have"),
        (_other_model, "its model is 'WordLevel'"),
        (_normalizer, "its normalizer 'Lowercase' is unknown"),
        (_far_id, "its ids reach 9999999"),
    ],
)
def test_a_vocabulary_that_would_give_other_ids_is_refused(
    tmp_path: Path, change: Callable[[Any], None], words: str
) -> None:
    path = with_vocabulary(folder_of(tmp_path / "f", "llama", **LLAMA), _byte_level())
    parts = json.loads((path / "tokenizer.json").read_text())
    change(parts)
    (path / "tokenizer.json").write_text(json.dumps(parts))
    with pytest.raises(FormatError, match=words):
        folders.read(path)


def test_a_tensor_of_a_folder_that_is_used_as_it_is_takes_no_copy(tmp_path: Path) -> None:
    file = folders.read(folder_of(tmp_path / "f", "llama", **LLAMA))
    stored = safetensors.read(tmp_path / "f" / "model.safetensors", mmap=True).entries[
        "model.layers.0.mlp.up_proj.weight"
    ]
    own = file.entries["blk.0.ffn_up.weight"]
    assert (own.start, own.stop) == (stored.start, stored.stop)
    assert file.entries["blk.0.attn_q.weight"].start == 0  # it is made: its rows are in another order
