"""Models with an encoder and a decoder: each text has a source, which the decoder's layers attend to.

tests/llama_cpp.py compares their logits with llama.cpp's, tests/test_transformers_folders.py with transformers'."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import FormatError, SettingError, Tensor
from kernmill.commands.cli import main
from kernmill.llm import Model
from kernmill.llm.engine import Engine
from kernmill.llm.saved_state import save_state
from tests.tiny_models import CASES, metadata_of, weights_of, write

SOURCES = [[1, 70, 80, 2], [1, *range(90, 160), 2], [5, 6, 7, 8, 9]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(CASES["t5"], tmp_path_factory.mktemp("t5") / "t5.gguf")


def greedy(path: Path, source: list[int], count: int) -> list[int]:
    """By the logits of all tokens at once, each time."""
    with Model.from_gguf(path, capacity=128, block=16) as model:
        ids = [1]
        model.encode(source)
        for _ in range(count):
            ids.append(int(model.logits(ids).numpy()[-1].argmax()))
        return ids[1:]


def test_texts_of_several_sources_are_those_of_each_alone(path: Path) -> None:
    expected = [greedy(path, source, 6) for source in SOURCES]
    assert len({tuple(one) for one in expected}) == 3  # the source counts
    with Model.from_gguf(path, capacity=128, block=16, sequences=3) as model:
        steps = [*model.generate_all(SOURCES, max_tokens=6)]
    found = [[step[n] for step in steps if step[n] is not None] for n in range(3)]
    assert found == [one[: one.index(2)] if 2 in one else one for one in expected]


def test_two_texts_that_take_turns_keep_their_sources(path: Path) -> None:
    with Model.from_gguf(path, capacity=128, block=16) as model:
        alone = [list(model.generate(source, max_tokens=5)) for source in SOURCES[:2]]
        first, second = (model.generate(source, max_tokens=5) for source in SOURCES[:2])
        made = [*zip(first, second, strict=False)]
        assert [[one for one, _ in made], [two for _, two in made]] == [ids[: len(made)] for ids in alone]
        assert (first.prompt_tokens, second.prompt_tokens) == (4, 72)


def test_the_memory_of_a_model_counts_the_embedding_once(path: Path) -> None:
    with Model.from_gguf(path, capacity=64) as model:
        sizes = sum(array.nbytes for array in weights_of(CASES["t5"]).values())
        sources = 2 * 2 * 4 * 12 * 64 * 4  # keys and values of two layers: heads, width, tokens, bytes
        padding = 2 * 8 * 64 * 4  # rows of the embedding and the output, which are interleaved
        assert model.memory().weights == sizes + sources + padding


def _engine(model: Model) -> Any:
    return Engine(model)


def _state(model: Model) -> Any:
    return save_state(model, "state")


def _no_source(model: Model) -> Any:
    return model.logits([1, 5])


def _long(model: Model) -> Any:
    return model.encode([5] * 100)


def _shift(model: Model) -> Any:
    return model.generate([5, 6], keep=1)


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (_engine, "t5 has an encoder and a decoder, which only Model and kernmill run use"),
        (_state, "t5 has an encoder and a decoder"),
        (_no_source, "logits: the decoder has no source yet. Give one: model.encode"),
        (_long, "encode: 100 tokens exceed the cache capacity of 64"),
        (_shift, "t5"),
    ],
)
def test_what_such_a_model_cannot_do_is_said(path: Path, use: Callable[[Model], Any], words: str) -> None:
    with Model.from_gguf(path, capacity=64, block=16) as model, pytest.raises(SettingError, match=words):
        use(model)


def test_the_command_bench_says_that_it_gives_no_source(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Named regression: it asked for a call of Python."""
    assert main(["bench", str(path), "-p", "4", "-n", "1"]) == 2
    assert "bench: t5 has an encoder and a decoder, which only Model and kernmill run" in capsys.readouterr().err


def test_a_decoder_alone_has_nothing_to_encode(tmp_path: Path) -> None:
    with (
        Model.from_gguf(write(CASES["llama"], tmp_path / "a.gguf"), capacity=64) as model,
        pytest.raises(SettingError, match="encode: llama has no encoder and decoder"),
    ):
        model.encode([1, 5])


@pytest.mark.parametrize("name", ["dec.blk.1.cross_attn_k.weight", "enc.blk.2.attn_v.weight", "enc.output_norm.weight"])
def test_a_tensor_that_is_missing_is_named(name: str) -> None:
    tensors = {key: Tensor(array) for key, array in weights_of(CASES["t5"]).items() if key != name}
    with pytest.raises(FormatError, match=f"the file has no tensor {name}"):
        Model.of(metadata_of(CASES["t5"]), tensors.get, capacity=64, tokenizer=None)


def test_a_vector_of_a_text_is_the_mean_of_the_encoder_states(path: Path) -> None:
    with Model.from_gguf(path, capacity=64) as model:
        states = model._texts.hidden(SOURCES[0])
        np.testing.assert_allclose(model.embed(SOURCES[0], normalize=False).numpy(), states.mean(0), atol=1e-5)
