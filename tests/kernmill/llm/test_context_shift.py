"""A full context drops half of the tokens behind the kept ones, and the keys of the others move."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import SettingError
from kernmill.commands.cli import main
from kernmill.llm import Model, Sampler
from kernmill.llm.context_shift import dropped_tokens, kept_tokens
from kernmill.llm.drafted import GuessCounts, drafted, open_draft
from kernmill.llm.engine import Engine, GenerationRequest, NgramDraft, SamplingOptions
from tests.tiny_models import CASES, write

GREEDY = Sampler(temperature=0)
IDS = [1, *np.random.default_rng(3).integers(3, 259, 11).tolist()]
END_FREE = Sampler(temperature=0, logit_bias={2: -np.inf})
ENGINE_END_FREE = SamplingOptions(temperature=0, logit_bias={2: -float("inf")})


def named(name: str) -> Any:
    return CASES[name]


@pytest.mark.parametrize(
    ("name", "cache_type"),
    [("llama", "f32"), ("llama", "f16"), ("qwen2", "f32"), ("gemma3", "f32"), ("phi3", "f32"), ("deepseek2", "f32"),
     ("glm4", "f32"), ("bloom", "f32"), ("gpt-oss", "f32")],
)  # fmt: skip
def test_keys_of_the_first_layer_are_those_of_the_shorter_text(name: str, cache_type: str, tmp_path: Path) -> None:
    path = write(named(name), tmp_path / "tiny.gguf")
    keep, capacity = 3, 24
    drop = (capacity - keep) // 2
    text = [1, *np.random.default_rng(5).integers(3, 270, capacity).tolist()]
    with Model.from_gguf(path, capacity=capacity, cache_type=cache_type) as model:
        model.next_logits(text[:capacity])
        grown = model._text_of(text[:capacity], None, keep)
        grown.ids.append(text[capacity])
        model._make_room(0, grown)
        shorter = text[:keep] + text[keep + drop :]
        assert (grown.ids, grown.tokens, grown.dropped) == (shorter, 1, drop)
        assert model._seen[0] == shorter[:-1]
        end = len(shorter) - 1
        moved = [table.float().numpy()[:, :, :end] for table in (model._cache.keys[0], model._cache.values[0])]
        model.reset()
        model.next_logits(shorter[:-1])
        for found, table in zip(moved, (model._cache.keys[0], model._cache.values[0]), strict=True):
            computed = table.float().numpy()[:, :, :end]
            assert np.abs(found - computed).max() < (2e-3 if cache_type == "f16" else 2e-6) * np.abs(computed).max()


def test_a_text_goes_on_past_its_context(made: Callable[..., Path]) -> None:
    with Model.from_gguf(made(), capacity=16) as model:
        assert len([*model.generate(IDS, END_FREE, 50)]) == 5
        generation = model.generate(IDS, END_FREE, 50, keep=4)
        tokens = [*generation]
        assert (len(tokens), generation.tokens, generation.finish_reason) == (50, 50, "length")
        assert model._seen[0] == IDS[:4]  # the others saw dropped tokens: no text begins with them
        assert [*model.generate(IDS, END_FREE, 50, keep=4)] == tokens

        draft, counts = NgramDraft(2, 1), GuessCounts()
        open_draft(model, draft)
        assert [*drafted(model, draft, counts, IDS, END_FREE, 50, 4)] == tokens
        found = list[int]()
        for token in model.generate(IDS, END_FREE, 50, keep=4):  # between steps of which another text is computed
            found.append(token)
            model.next_logits([1, 7])
        assert found[:5] == tokens[:5]
        assert len(found) == 50

    with Model.from_gguf(made(), capacity=16) as model:
        for guesses in (None, NgramDraft(2, 1)):
            with Engine(model, slots=2, chunk=16, draft=guesses) as engine:
                asked = [GenerationRequest(IDS, ENGINE_END_FREE, 50, keep=4) for _ in range(3)]
                ended = [engine.submit(one) for one in asked]
                made_tokens = [[token for piece in one for token in piece.tokens] for one in ended]
                assert made_tokens == [tokens] * 3
                assert all(state.tokens <= 4 and not state.is_busy for state in engine.slots())
                assert engine.figures().tokens == 150


def test_how_many_are_kept_and_dropped() -> None:
    assert [dropped_tokens(512, keep) for keep in (0, 1, 100)] == [256, 255, 206]  # llama.cpp's n_left / 2
    assert [kept_tokens(keep, 30, 64) for keep in (-1, 0, 60)] == [30, 0, 60]
    assert kept_tokens(-1, 64, 64) == 60
    for keep in (-2, 61):
        with pytest.raises(SettingError, match=rf"^context shift: keep={keep} of a context of 64 tokens: must be -1"):
            kept_tokens(keep, 30, 64)


def test_the_command(made: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", str(made()), "-p", "ab", "-n", "30", "-c", "16", "--temp", "0", "--ignore-eos"]
    assert main([*words, "--keep", "2", "--context-shift"]) == 0
    out, err = capsys.readouterr()
    assert "is full" not in err
    with Model.from_gguf(made(), capacity=16) as model:
        assert model.tokenizer is not None
        ids = model.tokenizer.encode("ab")
        stream = model.tokenizer.stream()
        text = "".join([*map(stream.push, model.generate(ids, END_FREE, 30, keep=3)), stream.finish()])
    assert out == "ab" + text + "\n"
    assert main([*words, "--context-shift", "--keep", "16"]) == 2
    assert "context shift: keep=17 of a context of 16 tokens: must be -1, the prompt, or" in capsys.readouterr().err
    assert main([*words, "--keep", "2"]) == 2
    assert "run: --keep 2 is for --context-shift. Add it." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mamba", "context shift: mamba has a state for each text"),
        ("gpt2", "context shift: gpt2 has keys that depend on their positions in another way"),
        ("hunyuan-dense", "context shift: hunyuan-dense has keys that depend"),
    ],
)
def test_models_whose_keys_cannot_move(name: str, message: str, tmp_path: Path) -> None:
    with Model.from_gguf(write(named(name), tmp_path / "tiny.gguf"), capacity=16) as model:
        with pytest.raises(SettingError, match=message):
            model.generate([1, 5], keep=0)
        with Engine(model, slots=1) as engine, pytest.raises(SettingError, match=message):
            engine.submit(GenerationRequest([1, 5], keep=0))
