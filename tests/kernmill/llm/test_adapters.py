"""Adapters at run time against the same model with their products added to its matrices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import Context, Tensor
from kernmill.ir import FormatError, SettingError
from kernmill.llm import Model
from kernmill.llm.adapters import AdapterScales
from kernmill.llm.engine import Engine, GenerationRequest
from kernmill.quant import save
from tests.tiny_models import CASES, SIZES, metadata_of, weights_of, write

Array = np.ndarray[Any, Any]
IDS = [1, 5, 9, 200, 33, 12, 7]
NAMES = ("attn_q", "attn_v", "attn_output", "ffn_down", "ffn_up")
WIDTH = int(SIZES["embedding_length"])
TIED = replace(CASES["llama"], is_tied=True)


def pairs(weights: Mapping[str, Array], rank: int, seed: int, *names: str) -> dict[str, tuple[Array, Array]]:
    """A pair for each matrix of the first layer with one of these names."""
    chance = np.random.default_rng(seed)
    found: dict[str, tuple[Array, Array]] = {}
    for name in names:
        full = name if name in weights else f"blk.0.{name}.weight"
        out, into = weights[full].shape
        shapes = ((out, rank), (into, rank)) if full == "token_embd.weight" else ((rank, into), (out, rank))
        first, second = (np.asarray(chance.standard_normal(shape) * 0.2, np.float32) for shape in shapes)
        found[full] = first, second
    return found


def write_adapter(path: Path, given: Mapping[str, tuple[Array, Array]], **keys: Any) -> str:
    tensors = {f"{name}.lora_{'ab'[n]}": Tensor(pair[n]) for name, pair in given.items() for n in (0, 1)}
    metadata = {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora",
                "adapter.lora.alpha": 8.0}  # fmt: skip
    save(path, tensors, metadata | {key.replace("__", "."): value for key, value in keys.items()})
    return str(path)


def merged(weights: Mapping[str, Array], given: Mapping[str, tuple[Array, Array]], scale: float) -> dict[str, Array]:
    found = dict(weights)
    for name, (first, second) in given.items():
        product = first @ second.T if name == "token_embd.weight" else second @ first
        found[name] = found[name] + np.float32(scale) * product
    return found


def logits_of(path: Path, weights: Mapping[str, Array], case: Any) -> Array:
    save(path, {name: Tensor(array) for name, array in weights.items()}, metadata_of(case))
    with Model.from_gguf(path, tokenizer=None, capacity=64) as model:
        found: Array = model.logits(IDS).numpy()
    return found


@pytest.mark.parametrize("case", [CASES["llama"], TIED], ids=["llama", "tied"])
def test_logits_are_those_of_merged_weights(case: Any, tmp_path: Path) -> None:
    weights = weights_of(case)
    one, two = pairs(weights, 4, 1, *NAMES, "token_embd.weight"), pairs(weights, 2, 2, "attn_q", "attn_k")
    paths = {write_adapter(tmp_path / "one", one): 0.5, write_adapter(tmp_path / "two", two, adapter__lora__alpha=0): 2}
    base = write(case, tmp_path / "base")
    expected = logits_of(tmp_path / "m", merged(merged(weights, one, 0.5 * 8 / 4), two, 2.0), case)
    plain = logits_of(tmp_path / "p", weights, case)
    with Model.from_gguf(base, tokenizer=None, capacity=64, adapters=paths) as model:
        assert np.abs(expected - plain).max() > 0.1
        np.testing.assert_allclose(model.logits(IDS).numpy(), expected, atol=2e-4)
        for scales, of in (((0, 0), plain), ((0.5, 2), expected)):
            model.rescale(scales)
            np.testing.assert_allclose(model.logits(IDS).numpy(), of, atol=2e-4)
            np.testing.assert_allclose(model.next_logits(IDS), of[-1], atol=2e-4)
        assert [adapter.scale for adapter in model.adapters] == [0.5, 2]


def test_on_cl(opencl: str, tmp_path: Path) -> None:
    weights = weights_of(TIED)
    one = pairs(weights, 4, 1, *NAMES)
    path = write_adapter(tmp_path / "one", one)
    expected = logits_of(tmp_path / "m", merged(weights, one, 2), TIED)
    with (
        Context(DEVICE=opencl),
        Model.from_gguf(write(TIED, tmp_path / "b"), tokenizer=None, capacity=64, adapters=[path]) as model,
    ):
        np.testing.assert_allclose(model.logits(IDS).numpy(), expected, atol=2e-4)


def test_an_engine_reads_its_slots_again_after_another_scale(tmp_path: Path) -> None:
    weights = weights_of(TIED)
    path = write_adapter(tmp_path / "one", pairs(weights, 4, 1, *NAMES))
    with (
        Model.from_gguf(write(TIED, tmp_path / "b"), tokenizer=None, capacity=64, adapters=[path]) as model,
        Engine(model, slots=1, chunk=16) as engine,
    ):

        def tokens() -> list[int]:
            generation = engine.submit(GenerationRequest(IDS, max_tokens=8))
            return [token for piece in generation for token in piece.tokens]

        for scale in (1.0, 0.0, 1.0):
            model.rescale([scale])
            assert tokens() == tokens() == [*model.generate(IDS, max_tokens=8)]


MISTAKES: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"general__type": "model"},
        FormatError,
        "it is neither a LoRA adapter nor a control vector: general.type 'model', "
        "adapter.type 'lora'. Give a file of one.",
    ),
    (
        {"general__architecture": "qwen2"},
        FormatError,
        "the adapter is for a model of architecture 'qwen2', and this one",
    ),
    ({"adapter__lora__alpha": "x"}, FormatError, "adapter.lora.alpha is 'x': must be a number."),
    ({"names": ["blk.7.attn_q.weight"]}, FormatError, "the model has no weight blk.7.attn_q.weight"),
    ({"names": ["blk.0.attn_norm.weight"]}, FormatError, "blk.0.attn_norm.weight is not a matrix"),
    ({"cut": True}, FormatError, "the pair of blk.0.attn_q.weight has shapes"),
    ({"half": True}, FormatError, "it has no tensor blk.0.attn_q.weight.lora_b"),
    ({"scale": float("nan")}, SettingError, "adapter: scale=nan: must be a finite number."),
]


@pytest.mark.parametrize(("what", "kind", "sentence"), MISTAKES, ids=[sentence[:30] for _, _, sentence in MISTAKES])
def test_mistakes(what: dict[str, Any], kind: type[Exception], sentence: str, tmp_path: Path) -> None:
    keys = dict(what)
    scale, names = keys.pop("scale", 1.0), keys.pop("names", ["blk.0.attn_q.weight"])
    is_cut, is_half = keys.pop("cut", False), keys.pop("half", False)
    given = pairs(weights_of(TIED), 4, 1, "attn_q")
    first, second = given["blk.0.attn_q.weight"]
    if is_cut:
        first = first[:, :-1]
    path = write_adapter(tmp_path / "one", dict.fromkeys(names, (first, second)), **keys)
    if is_half:
        save(Path(path), {"blk.0.attn_q.weight.lora_a": Tensor(first)}, {
            "general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora"
        })  # fmt: skip
    with pytest.raises(kind) as error:
        Model.from_gguf(write(TIED, tmp_path / "b"), tokenizer=None, capacity=64, adapters={path: scale})
    assert sentence in str(error.value)


def test_another_number_of_scales(tmp_path: Path) -> None:
    with (
        Model.from_gguf(write(TIED, tmp_path / "b"), tokenizer=None, capacity=64) as model,
        pytest.raises(SettingError, match=r"^rescale: 1 scales, and the model has 0 adapters\.$"),
    ):
        model.rescale([1.0])


# --- control vectors
def write_vector(path: Path, directions: Mapping[int, Array], **keys: Any) -> str:
    metadata = {"general.architecture": "controlvector", "controlvector.model_hint": "llama"}
    tensors = {f"direction.{layer}": Tensor(np.asarray(value, np.float32)) for layer, value in directions.items()}
    save(path, tensors, metadata | {key.replace("__", "."): value for key, value in keys.items()})
    return str(path)


def test_a_control_vector_is_added_after_its_layer(tmp_path: Path) -> None:
    """As a bias of the last product of the layer, which the file of another model has."""
    chance = np.random.default_rng(3)
    weights, path = weights_of(TIED), tmp_path / "model.gguf"
    vectors = [{layer: chance.standard_normal(WIDTH) for layer in layers} for layers in ((1, 2), (2,))]
    given = {write_vector(tmp_path / f"{n}.gguf", one): 0.5 + n for n, one in enumerate(vectors)}
    plain = logits_of(path, weights, TIED)
    added = {0: np.zeros(WIDTH), 1: 0.5 * vectors[0][1], 2: 0.5 * vectors[0][2] + 1.5 * vectors[1][2]}
    biases = {f"blk.{layer}.ffn_down.bias": np.asarray(value, np.float32) for layer, value in added.items()}
    wanted = logits_of(tmp_path / "biased.gguf", weights | biases, TIED)
    with Model.from_gguf(path, tokenizer=None, capacity=64, adapters=given) as model:
        np.testing.assert_allclose(model.logits(IDS).numpy(), wanted, rtol=1e-4, atol=1e-4)
        model.rescale([0, 0])
        np.testing.assert_allclose(model.logits(IDS).numpy(), plain, rtol=1e-4, atol=1e-4)


def test_layers_of_a_control_vector_are_chosen(tmp_path: Path) -> None:
    model = write(TIED, tmp_path / "model.gguf")
    directions = {n: np.random.default_rng(n).standard_normal(WIDTH) for n in (1, 2)}
    both = write_vector(tmp_path / "both.gguf", directions)
    second = write_vector(tmp_path / "second.gguf", {2: directions[2]})
    chosen = AdapterScales({both: 1.0})
    found = []
    for adapters, layers in (({second: 1.0}, None), (chosen, (2, 2)), ({both: 1.0}, None), (chosen, (1, 3))):
        chosen.layers = layers
        with Model.from_gguf(model, tokenizer=None, capacity=64, adapters=adapters) as opened:
            found.append(opened.logits(IDS).numpy())
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[2], found[3])
    for layers in ((0, 1), (2, 1), (1, 4)):
        chosen.layers = layers
        with pytest.raises(SettingError, match=rf"^control vector: layers {layers[0]} to {layers[1]}: the model has"):
            Model.from_gguf(model, adapters=chosen)
    chosen = AdapterScales({second: 1.0})
    chosen.layers = 1, 1
    with pytest.raises(SettingError, match=r"layers 1 to 1: .*second.gguf changes 2 to 2\."):
        Model.from_gguf(model, adapters=chosen)


OTHER_MODELS = [
    ({0: WIDTH}, {}, "a tensor direction.N for each layer N from 1 to 2, and this one has direction.0: it is for"),
    ({3: WIDTH}, {}, "a tensor direction.N for each layer N from 1 to 2, and this one has direction.3: it is for"),
    ({1: 7}, {}, f"direction.1 has shape (7,), and the states of this model have {WIDTH} floats: the control vector"),
    ({1: WIDTH}, {"controlvector__model_hint": "qwen2"}, "is for a model of architecture 'qwen2', and this one is"),
]


@pytest.mark.parametrize(("directions", "keys", "sentence"), OTHER_MODELS)
def test_a_control_vector_of_another_model(
    directions: dict[int, int], keys: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    model = write(TIED, tmp_path / "model.gguf")
    vector = write_vector(tmp_path / "vector.gguf", {n: np.ones(size) for n, size in directions.items()}, **keys)
    with pytest.raises(FormatError, match=re.escape(sentence)):
        Model.from_gguf(model, adapters=[vector])
