"""class LLM: from threads and from coroutines."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill.ir import SettingError
from kernmill.llm import LLM, Model
from kernmill.llm.engine import QueueFull
from tests.tiny_models import ranker

PROMPT = "Once upon a time"
MESSAGES = [{"role": "user", "content": PROMPT}]


@pytest.fixture(scope="module")
def llm(gguf: Callable[[str], Any]) -> Generator[LLM]:
    with LLM(gguf("stories260K/stories260Ktok512.gguf").path, slots=2, queue=4, context=256, chunk=32) as found:
        yield found


@pytest.fixture(scope="module")
def expected(llm: LLM) -> str:
    return "".join(llm.model.complete(PROMPT, max_tokens=12))


def test_a_call_gives_a_whole_reply(llm: LLM, expected: str) -> None:
    reply = llm(PROMPT, max_tokens=12, temperature=0)
    assert reply.text == str(reply) == expected
    assert reply.finish_reason == "length"
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (5, 12)
    assert llm(PROMPT, max_tokens=12, temperature=0, stop=" girl").text == expected[: expected.index(" girl")]


def test_a_stream_in_a_thread_and_in_a_coroutine(llm: LLM, expected: str) -> None:
    stream = llm.stream(PROMPT, max_tokens=12, temperature=0)
    assert stream.finish_reason is None
    assert "".join(part.content for part in stream) == expected

    async def read(prompt: str) -> str:
        return "".join([part.content async for part in llm.stream(prompt, max_tokens=12, temperature=0)])

    async def both() -> tuple[str, str]:
        return await asyncio.gather(read(PROMPT), read("The dog"))

    assert asyncio.run(both())[0] == expected
    assert asyncio.run(llm.stream(PROMPT, max_tokens=12, temperature=0).wait_async()).text == expected


def test_log_probabilities(llm: LLM) -> None:
    reply = llm(PROMPT, max_tokens=3, temperature=0, logprobs=2)
    assert [len(one.top) for one in reply.logprobs] == [2, 2, 2]
    assert [one.top[0] for one in reply.logprobs] == [(one.token, one.logprob) for one in reply.logprobs]
    assert llm.tokenizer.decode([one.token for one in reply.logprobs]) == reply.text.lstrip()
    assert [one.top for one in llm(PROMPT, max_tokens=1, logprobs=0).logprobs] == [()]


def test_a_conversation(llm: LLM) -> None:
    reply = llm.chat(MESSAGES, max_tokens=8, temperature=0)
    assert reply.text == "".join(part.content for part in llm.chat_stream(MESSAGES, max_tokens=8, temperature=0))
    assert reply.tool_calls == []


def test_stop_strings_of_a_conversation_end_it_in_the_engine(llm: LLM) -> None:
    """They were looked for where the reply was read, so that the model went on until somebody read it."""
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 40}
    whole = llm.chat(MESSAGES, **options).text
    stop = whole[12:16]
    stream = llm.chat_stream(MESSAGES, stop=stop, **options)
    while stream.generation.finish_reason is None:  # nobody reads it
        time.sleep(0.001)
    assert (stream.generation.finish_reason, stream.generation.stop_string) == ("stop", stop)
    assert stream.wait().text == whole[: whole.index(stop)]
    assert stream.finish_reason == "stop"
    assert stream.usage.completion_tokens < 40


def test_an_encoder_gives_vectors_and_scores(tmp_path: Path) -> None:
    with LLM(ranker(tmp_path / "bert.gguf"), context=64) as llm:
        with pytest.raises(SettingError, match=r"^LLM: bert is an encoder: it gives vectors, and writes no text\.$"):
            llm("ab")
        scores = llm.rerank("ab", ["ba", "ccc d"] * 20)
        assert np.allclose(scores, llm.model.rerank("ab", ["ba", "ccc d"] * 20).numpy())


def test_cancel(llm: LLM) -> None:
    stream = llm.stream(PROMPT, temperature=0)
    next(stream)
    stream.cancel()
    stream.wait()
    assert stream.finish_reason == "cancelled"
    with llm.stream(PROMPT, temperature=0) as left:
        next(left)

    async def breaks() -> None:
        async for _ in llm.stream(PROMPT, temperature=0):
            break

    asyncio.run(breaks())
    while any(slot.is_busy for slot in llm.engine.slots()):
        pass


def test_vectors(llm: LLM) -> None:
    one, two = llm.embed(["a cat", "a dog"])
    assert one.shape == two.shape == (64,)
    assert np.isclose(np.linalg.norm(one), 1, atol=1e-5)
    assert np.array_equal(llm.embed("a cat")[0], one)


def test_threads_get_their_own_texts(llm: LLM, expected: str) -> None:
    found: dict[int, str] = {}

    def ask(n: int) -> None:
        found[n] = llm(PROMPT if n % 2 else "The dog", max_tokens=12, temperature=0).text

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[1] == found[3] == expected
    assert found[0] == found[2] != expected


def test_a_full_queue(llm: LLM) -> None:
    streams: list[Any] = []

    def fill() -> None:
        for _ in range(20):
            streams.append(llm.stream(PROMPT, temperature=0))

    with pytest.raises(QueueFull):
        fill()
    for stream in streams:
        stream.cancel()
        stream.wait()


MISTAKES: list[tuple[Callable[[LLM], Any], str]] = [
    (
        lambda llm: llm("a", temp=1),
        "LLM: there is no option temp. Options are sampling, max_tokens, stop, logprobs, keep, temp",
    ),
    (lambda llm: llm("a" * 10_000), "the prompt has 10000 characters, and the context of 256 tokens takes at most "),
    (
        lambda llm: llm.chat([{"role": "x"}]),
        "messages[0].role: must be one of system, developer, user, assistant, tool.",
    ),
    (
        lambda llm: llm.chat(MESSAGES, tools=[{"function": {"name": "f"}}]),
        "tools: the model's chat template has no form for tool calls. Choose another model.",
    ),
    (lambda llm: llm.chat(MESSAGES, tool_choice="required"), "tool_choice: needs tools."),
]


@pytest.mark.parametrize(("ask", "sentence"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes(llm: LLM, ask: Callable[[LLM], Any], sentence: str) -> None:
    with pytest.raises(SettingError) as error:
        ask(llm)
    assert str(error.value).startswith(sentence)


def test_a_model_without_a_tokenizer(gguf: Callable[[str], Any]) -> None:
    with (
        Model.from_gguf(gguf("stories260K/stories260Ktok512.gguf").path, tokenizer=None) as model,
        pytest.raises(SettingError, match="built without a tokenizer"),
    ):
        LLM(model)
