"""Drafts: texts are the same with them as without, greedy and sampled; what is guessed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kernmill.ir import SettingError
from kernmill.llm.engine import DraftSource, Engine, GenerationRequest, ModelDraft, NgramDraft, SamplingOptions
from kernmill.llm.generate import Model
from tests.tiny_models import CASES, write

PROMPTS = ["Once upon a time", "The dog. The dog. The dog. The", "Lily and Tom. Lily and Tom. Lily", "She was"]


@pytest.fixture(scope="module")
def path(shared_data: Callable[[str], Path]) -> Path:
    pytest.importorskip("tokenizers")
    return shared_data("stories260K") / "stories260Ktok512.gguf"


@pytest.fixture(scope="module")
def stories(path: Path) -> Iterator[Model]:
    with Model.from_gguf(path, capacity=128) as model:
        yield model


class WrongDraft:
    """Guesses that are never right, and those of some lengths."""

    most, least = 7, 0

    def open(self, model: Model, slots: int, context: int) -> None:
        pass

    def begin(self, number: int) -> None:
        pass

    def guess(self, number: int, ids: Sequence[int], most: int) -> Sequence[int]:
        return [511] * min(most, len(ids) % 9)


def texts(engine: Engine, **options: Any) -> list[str]:
    tokenizer = engine.model.tokenizer
    assert tokenizer is not None
    started = [
        engine.submit(GenerationRequest(tokenizer.encode(prompt), max_tokens=40, **options)) for prompt in PROMPTS
    ]
    return [one.text() for one in started]


@pytest.mark.parametrize("kind", ["ngram", "model", "wrong"])
@pytest.mark.parametrize("sampling", [SamplingOptions(temperature=0), SamplingOptions(temperature=0.9, seed=4)])
def test_texts_are_those_without_a_draft(stories: Model, path: Path, kind: str, sampling: SamplingOptions) -> None:
    with Engine(stories, slots=2, chunk=32) as engine:
        expected = texts(engine, sampling=sampling)
        steps = engine.figures().steps
    with Model.from_gguf(path, capacity=100) as small:
        drafts: dict[str, DraftSource] = {"ngram": NgramDraft(3, 1), "model": ModelDraft(small), "wrong": WrongDraft()}
        with Engine(stories, slots=2, chunk=32, draft=drafts[kind]) as engine:
            assert texts(engine, sampling=sampling) == expected
            figures = engine.figures()
            assert figures.guessed > 0
            assert figures.tokens == 160
            if kind == "model" and sampling.temperature == 0:  # it is the same model
                assert figures.accepted > 0.9 * figures.guessed
                assert figures.steps < steps
            if kind == "wrong":
                assert figures.accepted == 0
            assert texts(engine, sampling=sampling, stop=("zzz",)) == expected
            assert [slot.is_busy for slot in engine.slots()] == [False] * 2


def test_the_end_of_a_context_and_of_a_text(stories: Model) -> None:
    assert stories.tokenizer is not None
    ids = stories.tokenizer.encode("the cat the cat the cat the")
    with Engine(stories, slots=1, chunk=32, context=32, draft=NgramDraft(2, 1)) as engine:
        for count in (1, 2, 5, None):
            generation = engine.submit(GenerationRequest(ids, max_tokens=count))
            text = generation.text()
            assert generation.usage.completion_tokens == (33 - len(ids) if count is None else count)
            assert text == "".join(stories.complete("the cat the cat the cat the", max_tokens=count or 33 - len(ids)))


def test_what_followed_before_is_guessed(stories: Model) -> None:
    draft = NgramDraft(3, 2)
    draft.open(stories, 1, 64)
    draft.begin(0)
    assert draft.guess(0, [1, 2, 3, 4, 5, 2, 3], 2) == [4, 5]
    assert draft.guess(0, [1, 2, 3, 4, 5, 2, 3, 9], 2) == ()
    assert draft.guess(0, [1, 2, 3, 4, 5, 2, 3, 9, 2, 3], 5) == [9, 2, 3]
    draft.begin(0)
    assert draft.guess(0, [7, 2, 3], 5) == ()


def test_mistakes(stories: Model, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"^NgramDraft: longest=1, shortest=2: must be 1 <= shortest <= longest\.$"):
        NgramDraft(1, 2)
    other = write(CASES["llama"], tmp_path / "other.gguf")
    with (
        Model.from_gguf(other, capacity=64) as model,
        pytest.raises(
            SettingError, match=r"^draft: llama has another vocabulary than llama: \d+ tokens, and 512\. Choose"
        ),
    ):
        Engine(stories, draft=ModelDraft(model))
