"""What a model returns: pooled embeddings, why a text ended, token counts; stop strings; and options of a model."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import FormatError, SettingError, Tensor, dtypes
from kernmill.captures.ownership import buffer_of
from kernmill.ir import KernmillError
from kernmill.llm.generate import Model
from kernmill.llm.generation import StopStrings

IDS = [1, 2, 3, 4, 5]


class Vocabulary:
    """As much of a tokenizer as generation reads."""

    def __init__(self, end_ids: set[int]) -> None:
        self.end_ids = end_ids

    def __len__(self) -> int:
        return 7


def random_parts(arch: str = "llama") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Random weights of a tiny model, and its metadata."""
    chance = np.random.default_rng(5)
    keys = {
        "context_length": 12, "embedding_length": 8, "block_count": 1, "feed_forward_length": 12,
        "attention.head_count": 2, "attention.layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip
    shapes = {"token_embd": (7, 8), "output_norm": (8,), "blk.0.attn_norm": (8,), "blk.0.ffn_norm": (8,)}
    shapes |= {f"blk.0.attn_{name}": (8, 8) for name in ("q", "k", "v", "output")}
    shapes |= {"blk.0.ffn_gate": (12, 8), "blk.0.ffn_up": (12, 8), "blk.0.ffn_down": (8, 12)}
    shapes |= {f"blk.0.attn_{name}_norm": (4,) for name in "qk" if arch == "qwen3"}
    tensors = {f"{n}.weight": Tensor(chance.standard_normal(s).astype(np.float32)) for n, s in shapes.items()}
    return tensors, {"general.architecture": arch} | {f"{arch}.{key}": value for key, value in keys.items()}


def random_model(**options: Any) -> Model:
    weights, metadata = random_parts()
    return Model.of(metadata, weights.get, **{"capacity": 12, "block": 4, **options})


def pooled_model(kind: Any, more: dict[str, Any] | None = None, arch: str = "llama") -> Model:
    """A tiny model of a file with `pooling_type`."""
    weights, keys = random_parts(arch)
    keys |= {} if kind is None else {f"{arch}.pooling_type": kind}
    return Model.of(keys, (weights | (more or {})).get, n_ctx=12, block=4)


POOLED: dict[Any, Callable[[Any], Any]] = {
    None: lambda states: states.mean(0),
    0: lambda states: states,
    1: lambda states: states.mean(0),
    2: lambda states: states[0],
    3: lambda states: states[-1],
    np.uint32(3): lambda states: states[-1],
}


@pytest.mark.parametrize("kind", POOLED, ids=repr)
def test_an_embedding_is_pooled_as_the_file_says(kind: Any) -> None:
    """M1: it was always the mean."""
    model = pooled_model(kind)
    expected = POOLED[kind](model.hidden([1, 2, 3]).numpy())
    np.testing.assert_allclose(model.embed([1, 2, 3], normalize=False).numpy(), expected, rtol=1e-5)
    expected = expected / np.linalg.norm(expected, axis=-1, keepdims=True)
    np.testing.assert_allclose(model.embed([1, 2, 3]).numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
@pytest.mark.parametrize("names", [("cls",), ("cls.output",), ("cls", "cls.output")])
def test_a_file_that_ranks_gives_scores(arch: str, names: tuple[str, ...]) -> None:
    chance = np.random.default_rng(3)
    shapes = {"cls.weight": (8, 8), "cls.bias": (8,), "cls.output.weight": (2, 8), "cls.output.bias": (2,)}
    made = {
        name: chance.standard_normal(shape).astype(np.float32)
        for name, shape in shapes.items()
        if name.rpartition(".")[0] in names
    }
    model = pooled_model(4, {name: Tensor(array) for name, array in made.items()}, arch)
    x = model.hidden([1, 2, 3]).numpy()[-1]
    if "cls" in names:
        x = np.tanh(made["cls.weight"] @ x + made["cls.bias"])
    if "cls.output" in names:
        x = made["cls.output.weight"] @ x + made["cls.output.bias"]
    expected = np.exp(x) / np.exp(x).sum() if arch == "qwen3" else x
    np.testing.assert_allclose(model.embed([1, 2, 3]).numpy(), expected, rtol=1e-4, atol=1e-6)


def test_a_pooling_that_is_unknown_or_incomplete() -> None:
    with pytest.raises(FormatError) as caught:
        pooled_model(5)
    assert str(caught.value) == (
        "llama.pooling_type is 5: must be one of 0 (none), 1 (mean), 2 (cls), 3 (last), 4 (rank)."
    )
    with pytest.raises(FormatError) as caught:
        pooled_model(4)
    assert str(caught.value) == (
        "llama.pooling_type is 4 (rank), and the file has neither cls.weight nor cls.output.weight. Convert it again."
    )


def test_an_embedding_of_a_text(made: Callable[..., Path]) -> None:
    model = Model.from_gguf(made())
    assert model.tokenizer is not None
    expected = model.embed(model.tokenizer.encode("ab a")).numpy()
    np.testing.assert_array_equal(model.embed("ab a").numpy(), expected)
    with pytest.raises(SettingError, match=r"^embed: the model was built without a tokenizer\."):
        random_model().embed("ab")


def test_keys_and_values_of_different_types() -> None:
    """M9."""
    exact = random_model().logits(IDS).numpy()
    models = [random_model(cache_type=types) for types in (("f16", "f32"), ("f32", "f16"), "f16")]
    assert models[0]._cache.keys[0].dtype == models[1]._cache.values[0].dtype == dtypes.float16
    assert models[0]._cache.values[0].dtype == models[1]._cache.keys[0].dtype == dtypes.float32
    apart = [float(np.abs(model.logits(IDS).numpy() - exact).max()) for model in models]
    assert len(set(apart)) == 3
    assert 0 < min(apart) < max(apart) < 0.05
    sizes = [model.memory().context for model in models]
    assert sizes[0] == sizes[1] == 1.5 * sizes[2]
    for wrong in (("f16",), ("f16", 3), 5):
        with pytest.raises(
            SettingError, match=r"^cache_type=.*: must be a type, or a pair \(type of keys, type of values\)\.$"
        ):
            random_model(cache_type=wrong)


def test_checks_come_with_the_call() -> None:
    """M7: a generator checks nothing until it is iterated."""
    model = random_model()
    for call in (
        lambda: model.generate("text"),  # type: ignore[arg-type]
        lambda: model.generate([1], 0.8),  # type: ignore[arg-type]
        lambda: model.generate([1], max_tokens=2.5),  # type: ignore[arg-type]
        lambda: model.generate_all([[1], [2]]),
        lambda: model.complete("x"),
        lambda: model.complete("x", stop=[""]),
    ):
        with pytest.raises(SettingError):
            call()


def test_why_a_generation_ended() -> None:
    model = random_model()
    running = model.generate([1, 2, 3], max_tokens=5)
    assert (running.finish_reason, running.prompt_tokens, running.tokens) == (None, 3, 0)
    first = next(running)
    assert (running.finish_reason, running.tokens) == (None, 1)
    made = [first, *running]
    assert (running.finish_reason, running.tokens) == ("length", 5)
    running = model.generate([1, 2, 3])
    assert len([*running]) == running.tokens == 10
    assert running.finish_reason == "context"
    assert model.generate([1], max_tokens=0).finish_reason == "length"
    model.tokenizer = Vocabulary({made[3]})  # type: ignore[assignment]
    running = model.generate([1, 2, 3])
    assert [*running] == made[: made.index(made[3])]
    assert running.finish_reason == "stop"


def test_stop_strings_end_a_text(made: Callable[..., Path]) -> None:
    model = Model.from_gguf(made())
    whole = "".join(model.complete("a", max_tokens=12))
    stop = whole[2:5]
    for given in (stop, [stop], ["never", stop]):
        running = model.complete("a", max_tokens=12, stop=given)
        assert "".join(running) == whole[: whole.index(stop)]
        assert (running.finish_reason, running.stop_string) == ("stop", stop)
        assert running.prompt_tokens == len(model.tokenizer.encode("a"))  # type: ignore[union-attr]
        assert 0 < running.tokens < 12
    running = model.complete("a", max_tokens=12, stop="never")
    assert ("".join(running), running.finish_reason, running.stop_string) == (whole, "stop", None)
    with pytest.raises(SettingError) as caught:
        model.complete("a", stop=5)  # type: ignore[arg-type]
    assert str(caught.value) == "complete: stop=5: must be a string or a list of strings, none of them empty."


@pytest.mark.parametrize("cuts", range(1, 6))
def test_stop_strings_across_pieces(cuts: int) -> None:
    text, chance = "aabaacaabaad", np.random.default_rng(cuts)
    for stops in (["aad"], ["c", "aac"], ["zz"], ["baad", "aabaac"], ["d"], ["aabaacaabaad"]):
        ends = [text.find(one) for one in stops if one in text]
        for _ in range(20):
            places = [0, *sorted(chance.integers(0, len(text) + 1, cuts)), len(text)]
            found = StopStrings(stops)
            pieces = [found.push(text[a:b]) for a, b in pairwise(places)] + [found.finish()]
            assert "".join(pieces) == text[: min(ends, default=len(text))]


def test_a_closed_model_says_so(made: Callable[..., Path]) -> None:
    with Model.from_gguf(made(), block=4) as model:
        matrix = model.architecture.matrices[0]["attn_q.weight"]
        data = matrix if isinstance(matrix, Tensor) else matrix.data  # type: ignore[attr-defined]
        memory = weakref.ref(buffer_of(data).owner)  # type: ignore[union-attr]
        model.next_logits([1, 2, 3])
        del matrix, data
    model.close()
    gc.collect()
    Tensor([1.0]).realize()  # the next allocation removes the entries of nodes that are gone
    assert memory() is None
    for call in (lambda: model.next_logits([1]), lambda: list(model.generate([1])), model.memory):
        with pytest.raises(KernmillError) as caught:
            call()
        assert str(caught.value) == "Model: it is closed. Open its file again: Model.from_gguf(path)."


def test_options_of_other_libraries(made: Callable[..., Path]) -> None:
    path = made()
    assert Model.from_gguf(path, n_ctx=16).capacity == 16
    assert Model.from_gguf(path, n_ctx=0).capacity == 64
    with pytest.raises(SettingError) as caught:
        Model.from_gguf(path, n_ctx=16, capacity=8)
    assert str(caught.value) == "Model: n_ctx=16 and capacity=8 are the same size. Give one."


def test_metadata_are_kept_without_the_vocabulary(made: Callable[..., Path]) -> None:
    found = Model.from_gguf(made()).metadata
    assert found["general.architecture"] == "llama"
    assert found["tokenizer.ggml.bos_token_id"] == 1
    assert "tokenizer.ggml.tokens" not in found


def test_a_model_runs_on_its_device(made: Callable[..., Path]) -> None:
    """The setting DEVICE of a later call does not matter."""
    model = Model.from_gguf(made(), device="PYTHON", capacity=4, block=2)
    assert model.device == "PYTHON"
    expected = Model.from_gguf(made(), capacity=4, block=2).logits([1, 50]).numpy()
    np.testing.assert_allclose(model.logits([1, 50]).numpy(), expected, rtol=1e-4, atol=1e-5)
    assert model.embed([1]).device == "PYTHON"


def test_an_unknown_architecture_names_the_nearest() -> None:
    weights, keys = random_parts()
    with pytest.raises(FormatError) as caught:
        Model.of(keys | {"general.architecture": "gemma9"}, weights.get)
    assert str(caught.value).startswith(
        "general.architecture is 'gemma9', which kernmill cannot run yet. The nearest name is gemma. It runs apertus, "
    )
