"""Texts of an engine are those of one request alone, whoever joins and leaves; ends, cancelling, and bad requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import Context
from kernmill.ir import IndexRangeError, KernmillError, SettingError
from kernmill.llm.engine import Engine, Generation, GenerationRequest, Piece, QueueFull, SamplingOptions
from kernmill.llm.generate import Model
from tests.tiny_models import CASES, write

PROMPTS = [
    "Once upon a time",
    "The big dog",
    "One day, a boy named Tim went to the park. He saw a big tree and a small cat. Tim was very happy.",
    "Lily",
    "She was",
    "A cat",
]
TEXT = "One day, a boy named Tim went to the park. He saw a big tree and a small cat."


@pytest.fixture(scope="module")
def stories(shared_data: Callable[[str], Path]) -> Iterator[Model]:
    pytest.importorskip("tokenizers")
    with Model.from_gguf(shared_data("stories260K") / "stories260Ktok512.gguf", capacity=128) as model:
        yield model


@pytest.fixture(scope="module")
def engine(stories: Model) -> Iterator[Engine]:
    with Engine(stories, slots=3, chunk=32) as made:
        yield made


def ids(model: Model, text: str) -> list[int]:
    assert model.tokenizer is not None
    return model.tokenizer.encode(text)


def alone(model: Model, prompt: str, count: int) -> str:
    return "".join(model.complete(prompt, max_tokens=count))


def test_texts_of_many_requests_are_those_of_one_alone(stories: Model, engine: Engine) -> None:
    limits = [30, 7, 21, 40, 12, 33]
    started = [
        engine.submit(GenerationRequest(ids(stories, prompt), max_tokens=limit))
        for prompt, limit in zip(PROMPTS, limits, strict=True)
    ]
    assert [one.text() for one in started] == [alone(stories, p, n) for p, n in zip(PROMPTS, limits, strict=True)]
    assert {one.finish_reason for one in started} == {"length"}
    assert [one.usage.completion_tokens for one in started] == limits
    assert [one.usage.prompt_tokens for one in started] == [len(ids(stories, prompt)) for prompt in PROMPTS]


@pytest.mark.slow
def test_texts_on_cl(made: Callable[..., Path], opencl: str) -> None:
    with Context(DEVICE=opencl), Model.from_gguf(made(), tokenizer=None) as model, Engine(model, slots=2) as engine:
        prompts = [[1, 5, 9], [1, 7, 200, 31, 44], [1, *range(40)]]
        started = [engine.submit(GenerationRequest(prompt, max_tokens=9)) for prompt in prompts]
        found = [[token for piece in one for token in piece.tokens] for one in started]
        assert found == [list(model.generate(prompt, max_tokens=9)) for prompt in prompts]


@pytest.mark.parametrize("cache_type", ["f32", "f16"])
def test_a_prefix_in_a_busy_slot_is_copied(stories: Model, cache_type: Any) -> None:
    """Two requests begin alike, as those with one system prompt do. The copy is longer than a call copies."""
    prompts = [f"{TEXT} {TEXT} {TEXT} {end}" for end in ("Tim ran home.", "The cat was sad")]
    same = len(ids(stories, f"{TEXT} {TEXT} {TEXT}"))
    with Engine(stories, slots=2, chunk=32, cache_type=cache_type) as engine:
        first = engine.submit(GenerationRequest(ids(stories, prompts[0])))
        pieces = [next(first)]  # its prompt is read, and it goes on
        second = engine.submit(GenerationRequest(ids(stories, prompts[1]), max_tokens=12))
        text = second.text()
        whole = "".join(piece.text for piece in [*pieces, *first])
        assert second.usage.cached_tokens >= same - 2 > 64
    with Engine(stories, slots=1, chunk=32, cache_type=cache_type) as one:
        assert text == one.submit(GenerationRequest(ids(stories, prompts[1]), max_tokens=12)).text()
        assert whole == one.submit(GenerationRequest(ids(stories, prompts[0]))).text()


def test_a_prefix_in_a_slot_is_not_read_again(stories: Model, engine: Engine) -> None:
    first = engine.submit(GenerationRequest(ids(stories, TEXT), max_tokens=4))
    first.text()
    before = engine.figures()
    again = engine.submit(GenerationRequest(ids(stories, f"{TEXT} The cat"), max_tokens=20))
    assert again.text() == alone(stories, f"{TEXT} The cat", 20)
    assert again.usage.cached_tokens >= len(ids(stories, TEXT)) - 1
    assert engine.figures().cached_tokens - before.cached_tokens == again.usage.cached_tokens


def test_stop_strings_end_across_tokens_and_are_not_sent(stories: Model, engine: Engine) -> None:
    whole = alone(stories, PROMPTS[0], 40)
    stop = whole[17:24]
    found = engine.submit(GenerationRequest(ids(stories, PROMPTS[0]), max_tokens=40, stop=(stop, "never")))
    assert found.text() == whole[: whole.index(stop)]
    assert (found.finish_reason, found.stop_string) == ("stop", stop)


def test_a_full_context_is_a_length(stories: Model, engine: Engine) -> None:
    prompt = ids(stories, TEXT)
    found = engine.submit(GenerationRequest(prompt))
    text = found.text()
    assert found.finish_reason in ("length", "stop")
    assert text == "".join(stories.complete(TEXT))


def test_cancelling_ends_before_the_next_token(stories: Model, engine: Engine) -> None:
    given: list[Generation] = []
    is_given, ended = threading.Event(), threading.Event()

    def take(piece: Piece | None) -> None:
        if piece is None:
            ended.set()
        else:  # the engine waits for this call before its next step, however busy the machine is
            assert is_given.wait(60)
            given[0].cancel()

    given.append(engine.submit(GenerationRequest(ids(stories, PROMPTS[0])), take))
    is_given.set()
    assert ended.wait(60)
    assert given[0].finish_reason == "cancelled"
    assert given[0].usage.completion_tokens <= 2  # a piece may hold back a part of a character
    assert engine.submit(GenerationRequest(ids(stories, PROMPTS[1]), max_tokens=5)).text() == alone(
        stories, PROMPTS[1], 5
    )


def test_log_probabilities_are_the_models(stories: Model, engine: Engine) -> None:
    prompt = ids(stories, PROMPTS[1])
    request = GenerationRequest(prompt, SamplingOptions(temperature=1.5, seed=3), max_tokens=3, logprobs=4)
    for piece in [one for one in engine.submit(request) if one.tokens]:
        logits = stories.next_logits(prompt).astype(np.float64)
        logs = logits - np.log(np.exp(logits).sum())
        (found,) = piece.logprobs
        assert found.token == piece.tokens[0]
        np.testing.assert_allclose(found.logprob, logs[found.token], atol=1e-4)
        np.testing.assert_allclose([value for _, value in found.top], np.sort(logs)[::-1][:4], atol=1e-4)
        prompt.append(found.token)


def test_pieces_are_passed_on_by_a_call(stories: Model, engine: Engine) -> None:
    found: list[Piece | None] = []
    ended = threading.Event()

    def take(piece: Piece | None) -> None:
        found.append(piece)
        if piece is None:
            ended.set()

    engine.submit(GenerationRequest(ids(stories, PROMPTS[0]), max_tokens=10), take)
    assert ended.wait(60)
    assert "".join(piece.text for piece in found if piece is not None) == alone(stories, PROMPTS[0], 10)


def test_pieces_of_a_step_come_together(stories: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named regression: readers woke up between the tokens of a step, and took turns with the engine's thread."""
    seen: list[str] = []
    with Engine(stories, slots=2, chunk=32) as engine:
        advance = engine._advance

        def advanced(*given: Any) -> None:
            advance(*given)
            seen.append("token")

        monkeypatch.setattr(engine, "_advance", advanced)
        ended = [threading.Event(), threading.Event()]

        def take(number: int, piece: Piece | None) -> None:
            seen.append("piece")
            if piece is None:
                ended[number].set()

        for number in range(2):
            request = GenerationRequest(ids(stories, PROMPTS[number]), max_tokens=30)
            engine.submit(request, partial(take, number))
        assert all(event.wait(60) for event in ended)
    steps = "".join(word[0] for word in seen)
    assert steps.count("ttpp") > 10
    assert "tptp" not in steps[steps.index("ttpp") : steps.rindex("ttpp")]


def test_a_call_that_fails_ends_its_own_text_only(stories: Model, engine: Engine) -> None:
    def take(piece: Piece | None) -> None:
        raise RuntimeError("broken")

    broken = engine.submit(GenerationRequest(ids(stories, PROMPTS[0]), max_tokens=10), take)
    whole = engine.submit(GenerationRequest(ids(stories, PROMPTS[1]), max_tokens=10))
    assert whole.text() == alone(stories, PROMPTS[1], 10)
    assert isinstance(broken.error, RuntimeError)


def test_a_mask_allows_tokens(stories: Model, engine: Engine) -> None:
    class Even:
        def start(self) -> Even:
            return self

        def allowed(self, vocabulary: int) -> Any:
            return np.arange(vocabulary) % 2 == 0

        def accept(self, token: int) -> None:
            assert token % 2 == 0

    found = engine.submit(GenerationRequest(ids(stories, PROMPTS[0]), max_tokens=12, grammar=Even()))
    assert [token % 2 for piece in found for token in piece.tokens] == [0] * 12


def test_seeds_repeat_whatever_else_runs(stories: Model, engine: Engine) -> None:
    def start(seed: int) -> Any:
        return engine.submit(
            GenerationRequest(ids(stories, PROMPTS[0]), SamplingOptions(1.2, seed=seed), max_tokens=12)
        )

    first = start(5).text()
    many = [start(seed) for seed in (5, 6, 5, 7)]
    texts = [one.text() for one in many]
    assert texts[0] == texts[2] == first
    assert texts[1] != texts[0]


def test_a_full_queue_refuses(stories: Model) -> None:
    with Engine(stories, slots=1, queue=1, chunk=32) as engine:
        running = engine.submit(GenerationRequest(ids(stories, PROMPTS[0])))
        next(running)
        waiting = engine.submit(GenerationRequest(ids(stories, PROMPTS[1]), max_tokens=2))
        with pytest.raises(QueueFull, match=r"^Engine: 1 requests wait already\. Try again later, or build"):
            engine.submit(GenerationRequest(ids(stories, PROMPTS[2])))
        assert engine.figures().queue_length == 1
        assert engine.slots()[0].is_busy
        running.cancel()
        assert waiting.text() == alone(stories, PROMPTS[1], 2)


def test_the_end_of_an_engine(stories: Model) -> None:
    engine = Engine(stories, slots=1, chunk=32)
    begun, gate = threading.Event(), threading.Event()

    def on_piece(piece: Piece | None) -> None:
        begun.set()
        gate.wait(60)

    running = engine.submit(GenerationRequest(ids(stories, PROMPTS[0]), max_tokens=20), on_piece)
    assert begun.wait(60)
    waiting = engine.submit(GenerationRequest(ids(stories, PROMPTS[1]), max_tokens=20))
    closing = threading.Thread(target=engine.close, args=(60,))
    closing.start()
    waiting.text()  # it ends at once
    assert (running.finish_reason, waiting.finish_reason) == (None, "cancelled")
    gate.set()
    closing.join()
    assert (running.finish_reason, running.usage.completion_tokens) == ("length", 20)
    with pytest.raises(KernmillError, match=r"^Engine: it is closed\. Make another Engine for the model\.$"):
        engine.submit(GenerationRequest(ids(stories, PROMPTS[0])))
    engine.close()


def test_a_call_of_the_engine_closes_it(stories: Model) -> None:
    """A thread cannot wait for itself: close() in on_piece raised RuntimeError, and ended the engine as a failure."""
    pieces: list[Piece | None] = []
    own: list[Engine] = []
    ended = threading.Event()

    def on_piece(piece: Piece | None) -> None:
        pieces.append(piece)
        if piece is None:
            ended.set()
        else:
            own[0].close(wait_s=5)

    engine = Engine(stories, slots=2, chunk=32)
    own.append(engine)
    generation = engine.submit(GenerationRequest(ids(stories, PROMPTS[0]), max_tokens=50), on_piece)
    assert ended.wait(60)
    assert (generation.finish_reason, generation.error) == ("cancelled", None)
    assert len([piece for piece in pieces if piece and piece.tokens]) == 1
    engine.close()
    with pytest.raises(KernmillError, match=r"^Engine: it is closed\."):
        engine.submit(GenerationRequest(ids(stories, PROMPTS[0])))


def test_a_failed_engine_names_its_failure(stories: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine(stories, slots=1, chunk=32) as engine:
        failure = KernmillError("the device is gone.")

        def fails(*_: Any) -> Any:
            raise failure

        monkeypatch.setattr(engine._steps, "next_tokens", fails)
        monkeypatch.setattr(engine._steps, "read", fails)
        running = engine.submit(GenerationRequest(ids(stories, PROMPTS[0])))
        with pytest.raises(KernmillError, match=r"^the device is gone\.$"):
            running.text()
        with pytest.raises(KernmillError, match=r"^Engine: a step of the model failed: the device is gone\. Make") as e:
            engine.submit(GenerationRequest(ids(stories, PROMPTS[0])))
        assert e.value.__cause__ is failure


def test_an_encoder_has_no_engine(tmp_path: Path) -> None:
    path = write(CASES["bert"], tmp_path / "bert.gguf")
    with (
        Model.from_gguf(path, tokenizer=None, capacity=64) as model,
        pytest.raises(SettingError, match=r"^Engine: bert is an encoder, which writes no text\. Use Model\.embed"),
    ):
        Engine(model)


@pytest.mark.parametrize(
    ("tokens", "kind", "message"),
    [
        ([], SettingError, r"^Engine\.submit: no tokens\."),
        (["a"], SettingError, r"^Engine\.submit: token ids must be integers\."),
        ([512], IndexRangeError, r"^Engine\.submit: token id 512 is unknown\. Ids are 0 to 511\."),
        ([1] * 129, SettingError, r"^Engine\.submit: the prompt has 129 tokens, and the context 128\."),
    ],
)
def test_bad_prompts(engine: Engine, tokens: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        engine.submit(GenerationRequest(tokens))


def test_bad_options(stories: Model, engine: Engine) -> None:
    with pytest.raises(
        SettingError, match=r"^Engine: slots=0, context=128, queue=64, chunk=256: must be integers >= 1"
    ):
        Engine(stories, slots=0)
    with pytest.raises(SettingError, match=r"^Engine: context=129 is more than the model's capacity of 128\."):
        Engine(stories, context=129)
    with pytest.raises(SettingError, match=r"^Engine\.submit: stop=\('',\): must be a string or a list of strings"):
        engine.submit(GenerationRequest([1], stop=("",)))


def test_an_engine_and_its_model_at_once(stories: Model, engine: Engine) -> None:
    started = [engine.submit(GenerationRequest(ids(stories, prompt), max_tokens=20)) for prompt in PROMPTS[:2]]
    between = alone(stories, PROMPTS[3], 20)
    assert [one.text() for one in started] == [alone(stories, prompt, 20) for prompt in PROMPTS[:2]]
    assert between == alone(stories, PROMPTS[3], 20)
