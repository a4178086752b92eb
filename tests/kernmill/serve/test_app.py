"""Every path of the server, asked as clients ask."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill.llm import Model
from kernmill.llm.engine import DraftOptions
from kernmill.serve.limits import ServerOptions
from tests.tiny_models import ranker

from .conftest import Running, loaded, running

HELLO = [{"role": "user", "content": "Once upon a time"}]
GREEDY = {"temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module")
def expected(stories: str) -> str:
    """The text of the model alone."""
    return "".join(Model.from_gguf(stories, capacity=256).complete("Once upon a time", max_tokens=12))


def test_a_completion_is_the_text_of_the_model(server: Running, expected: str) -> None:
    body = server.ask("/v1/completions", {"prompt": "Once upon a time", **GREEDY}).json
    assert body["choices"] == [{"index": 0, "text": expected, "finish_reason": "length", "logprobs": None}]
    usage = body["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (5, 12, 17)
    assert body["model"] == "stories"
    assert body["object"] == "text_completion"


def test_a_stream_is_the_same_text(server: Running, expected: str) -> None:
    given = {"prompt": "Once upon a time", **GREEDY, "stream": True, "stream_options": {"include_usage": True}}
    answered = server.ask("/v1/completions", given)
    assert answered.headers["content-type"].startswith("text/event-stream")
    *events, last = answered.events
    assert "".join(event["choices"][0]["text"] for event in events) == expected
    assert [event["choices"][0]["finish_reason"] for event in events] == [None] * (len(events) - 1) + ["length"]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 12
    assert len({(event["id"], event["created"]) for event in (*events, last)}) == 1


def test_completion_as_llama_server_has_it(server: Running, expected: str) -> None:
    body = {"prompt": "Once upon a time", "n_predict": 12, "temperature": 0, "cache_prompt": True, "id_slot": -1}
    found = server.ask("/completion", body).json
    assert expected.startswith(found["content"])
    assert (found["stop"], found["stop_type"], found["stopping_word"]) == (True, "limit", "")
    assert (found["tokens_predicted"], found["prompt"], found["model"]) == (12, "Once upon a time", "stories")
    assert found["timings"]["predicted_n"] == 12
    raw = server.ask("/completion", {**body, "stream": True, "stop": ["little"]}).body.decode()
    events = [json.loads(line.removeprefix("data: ")) for line in raw.split("\n\n") if line.startswith("data: ")]
    assert [event["stop"] for event in events] == [*[False] * (len(events) - 1), True]  # and no [DONE]
    assert (events[-1]["stop_type"], events[-1]["stopping_word"]) == ("word", "little")
    assert "".join(event["content"] for event in events) == found["content"].partition("little")[0]
    assert len(server.ask("/completion", {**body, "prompt": ["a", [1, 2]]}).json) == 2
    refused = server.ask("/completion", {**body, "n_probs": 3})
    assert (refused.status, refused.error["param"]) == (400, "n_probs")


def test_a_chat_and_its_stream(server: Running) -> None:
    whole = server.ask("/v1/chat/completions", {"messages": HELLO, **GREEDY}).json
    message = whole["choices"][0]["message"]
    assert message["role"] == "assistant"
    events = server.ask("/v1/chat/completions", {"messages": HELLO, **GREEDY, "stream": True}).events
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    assert "".join(delta.get("content", "") for delta in deltas) == message["content"]
    assert all("finish_reason" in event["choices"][0] for event in events)
    assert events[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "length"
    assert events[-1]["timings"]["predicted_n"] == 12


def test_the_openai_package(server: Running, expected: str) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any") as client:
        assert [model.id for model in client.models.list()] == ["stories"]
        assert client.models.retrieve("stories").id == "stories"
        text = client.completions.create(model="gpt-3.5-turbo", prompt="Once upon a time", **GREEDY)
        assert text.choices[0].text == expected
        chat = client.chat.completions.create(model="x", messages=HELLO, n=2, user="me", store=True, **GREEDY)
        assert chat.choices[0].message.content == chat.choices[1].message.content
        chunks = client.chat.completions.create(
            model="x", messages=HELLO, stream=True, stream_options={"include_usage": True}, **GREEDY
        )
        parts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert "".join(parts) == chat.choices[0].message.content
        vectors = client.embeddings.create(model="x", input=["a cat", "a dog"])
        assert [len(one.embedding) for one in vectors.data] == [64, 64]
        with pytest.raises(openai.BadRequestError) as error:
            client.chat.completions.create(model="x", messages=HELLO, temperature=-1)
        assert error.value.param == "temperature"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("other")


def test_prompts_may_be_lists_and_tokens(server: Running, expected: str) -> None:
    ids = server.ask("/tokenize", {"content": "Once upon a time", "add_special": True}).json["tokens"]
    assert server.ask("/detokenize", {"tokens": ids[1:]}).json["content"] == "Once upon a time"
    given: list[Any] = [["Once upon a time", "The dog"], ids, [ids, ids]]
    counts = [2, 1, 2]
    for prompt, count in zip(given, counts, strict=True):
        choices = server.ask("/v1/completions", {"prompt": prompt, **GREEDY}).json["choices"]
        assert [choice["index"] for choice in choices] == list(range(count))
        assert choices[0]["text"] == expected
    echoed = server.ask("/v1/completions", {"prompt": "Once upon a time", "echo": True, **GREEDY}).json
    assert echoed["choices"][0]["text"] == "Once upon a time" + expected


def test_log_probabilities(server: Running) -> None:
    given = {"messages": HELLO, "temperature": 0, "max_tokens": 3, "logprobs": True, "top_logprobs": 2}
    choice = server.ask("/v1/chat/completions", given).json["choices"][0]
    told = choice["logprobs"]["content"]
    assert len(told) == 3
    for one in told:
        assert bytes(one["bytes"]).decode() == one["token"] == one["top_logprobs"][0]["token"]
        assert one["logprob"] == one["top_logprobs"][0]["logprob"] <= 0
        assert len(one["top_logprobs"]) == 2
    streamed = server.ask("/v1/chat/completions", {**given, "stream": True}).events
    found = [event["choices"][0]["logprobs"] for event in streamed if event["choices"][0].get("logprobs")]
    again = [one for part in found for one in part["content"]]
    assert [one["token"] for one in again] == [one["token"] for one in told]
    assert [one["logprob"] for one in again] == pytest.approx([one["logprob"] for one in told], abs=1e-3)
    alone = server.ask("/v1/chat/completions", {**given, "top_logprobs": 0}).json["choices"][0]["logprobs"]["content"]
    assert [one["top_logprobs"] for one in alone] == [[]] * 3
    plain = server.ask("/v1/completions", {"prompt": "Once", "temperature": 0, "max_tokens": 3, "logprobs": 1}).json
    lists = plain["choices"][0]["logprobs"]
    assert "".join(lists["tokens"]) == plain["choices"][0]["text"]
    assert [next(iter(top.values())) for top in lists["top_logprobs"]] == lists["token_logprobs"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_stop_string_ends_the_text_and_is_not_part_of_it(server: Running, path: str) -> None:
    given = {"messages": HELLO} if "chat" in path else {"prompt": "Once upon a time"}

    def text(**more: Any) -> tuple[str, str]:
        choice = server.ask(path, {**given, "temperature": 0, "max_tokens": 30, **more}).json["choices"][0]
        return choice.get("text") or choice["message"]["content"], choice["finish_reason"]

    whole, _ = text()
    stop = whole[11:16]  # over the borders of tokens
    assert text(stop=stop) == (whole[: whole.index(stop)], "stop")
    assert text(stop=["zzz", stop]) == (whole[: whole.index(stop)], "stop")
    events = server.ask(path, {**given, "temperature": 0, "max_tokens": 30, "stop": stop, "stream": True}).events
    choices = [event["choices"][0] for event in events]
    assert (
        "".join(one.get("text") or one.get("delta", {}).get("content") or "" for one in choices)
        == whole[: whole.index(stop)]
    )
    assert choices[-1]["finish_reason"] == "stop"


def test_seeds_and_bias(server: Running) -> None:
    def text(**more: Any) -> str:
        given = {"prompt": "Once", "max_tokens": 12, "temperature": 1.5, "top_k": 0, "top_p": 1, "min_p": 0, **more}
        answer: str = server.ask("/v1/completions", given).json["choices"][0]["text"]
        return answer

    assert text(seed=3) == text(seed=3) != text(seed=4)
    comma = server.ask("/tokenize", {"content": ",", "add_special": False}).json["tokens"][-1]
    assert set(text(logit_bias={str(comma): 1e3})) == {","}
    assert text(logit_bias=[[comma, False]], temperature=0) == text(logit_bias={str(comma): -100}, temperature=0)
    given = {
        "prompt": "Once",
        "max_tokens": 12,
        "temperature": 2,
        "top_k": 0,
        "top_p": 1,
        "min_p": 0,
        "n": 2,
        "seed": 3,
    }
    assert len({choice["text"] for choice in server.ask("/v1/completions", given).json["choices"]}) == 2


def test_a_prompt_that_a_slot_has_is_not_computed_again(server: Running) -> None:
    given = {"prompt": "The cat and the dog went to the park", **GREEDY}
    server.ask("/v1/completions", given)
    usage = server.ask("/v1/completions", given).json["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1


def test_vectors(server: Running, stories: str) -> None:
    plain = server.ask("/v1/embeddings", {"input": "a cat"}).json
    packed = server.ask("/v1/embeddings", {"input": "a cat", "encoding_format": "base64"}).json
    vector = np.array(plain["data"][0]["embedding"], np.float32)
    assert np.array_equal(np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), "<f4"), vector)
    assert np.allclose(vector, Model.from_gguf(stories, capacity=64).embed("a cat").numpy(), atol=1e-5)
    short = server.ask("/v1/embeddings", {"input": ["a cat"], "dimensions": 8}).json["data"][0]["embedding"]
    assert np.allclose(short, vector[:8] / np.linalg.norm(vector[:8]), atol=1e-6)
    assert server.ask("/v1/embeddings", {"input": "a", "dimensions": 65}).error["param"] == "dimensions"
    assert plain["usage"]["prompt_tokens"] == plain["usage"]["total_tokens"] > 0


def test_a_draft_changes_no_text(stories: str, expected: str) -> None:
    for draft in (DraftOptions("ngram"), DraftOptions(stories)):
        with running({"stories": stories}, ServerOptions(slots=2, draft=draft), loaded) as server:
            given = {"prompt": "Once upon a time", **GREEDY}
            assert server.ask("/v1/completions", given).json["choices"][0]["text"] == expected
            figures = server.ask("/metrics").body.decode()
            accepted = float(re.findall(r"^kernmill_accepted_tokens\S* (\S+)$", figures, re.MULTILINE)[0])
            assert accepted > 0 if draft.source == stories else accepted >= 0


def test_many_vectors_in_one_request(server: Running) -> None:
    texts = [f"{n} cats and a dog" for n in range(70)]
    data = server.ask("/v1/embeddings", {"input": texts}).json["data"]
    assert [one["index"] for one in data] == [*range(70)]
    alone = server.ask("/v1/embeddings", {"input": texts[41]}).json["data"][0]["embedding"]
    assert np.allclose(data[41]["embedding"], alone, atol=1e-5)


def test_reranking(tmp_path: Path) -> None:
    path = str(ranker(tmp_path / "bert.gguf"))
    with running({"bert": path}, ServerOptions(slots=2, context=64), loaded) as server:
        given: dict[str, Any] = {
            "query": "ab",
            "documents": ["ba", "ccc d", "ab"],
            "top_n": 2,
            "return_documents": True,
        }
        for name in ("/v1/rerank", "/rerank"):
            body = server.ask(name, given).json
            scores = [one["relevance_score"] for one in body["results"]]
            assert len(scores) == 2
            assert scores == sorted(scores, reverse=True)
            assert all(one["document"]["text"] == given["documents"][one["index"]] for one in body["results"])
            assert body["usage"]["prompt_tokens"] > 0
        assert server.ask("/v1/completions", {"prompt": "a"}).status == 400
        assert server.ask("/slots").json == []
        assert "kernmill_memory_bytes" in server.ask("/metrics").body.decode()


def test_reranking_with_a_model_that_writes(server: Running) -> None:
    answered = server.ask("/v1/rerank", {"query": "a", "documents": ["b"]})
    assert answered.status == 400
    assert "pooling type is" in answered.error["message"]


FORMS: list[tuple[dict[str, Any], str]] = [
    ({"grammar": 'root ::= "x" [0-9]'}, r"x\d"),
    ({"guided_grammar": 'root ::= "x" [0-9]'}, r"x\d"),
    ({"guided_regex": "a{3}"}, "aaa"),
    ({"guided_choice": ["yes", "no"]}, "yes|no"),
    ({"guided_json": {"enum": [1]}}, "1"),
    ({"json_schema": {"enum": [1]}}, "1"),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
    ({"structured_outputs": {"json": {"enum": ["a"]}}}, '"a"'),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [True]}}}}, "true"),
    ({"response_format": {"type": "json_object", "schema": {"const": {}}}}, r"\{ ?\}"),
    ({"response_format": {"type": "text"}}, "(?s).*"),
]


@pytest.mark.parametrize(("fields", "pattern"), FORMS, ids=lambda value: str(value)[:30])
def test_forms_of_text(server: Running, fields: dict[str, Any], pattern: str) -> None:
    given = {"temperature": 1.5, "max_tokens": 40, **fields}
    chat = server.ask("/v1/chat/completions", {"messages": HELLO, **given}).json
    assert re.fullmatch(pattern, chat["choices"][0]["message"]["content"])
    text = server.ask("/v1/completions", {"prompt": "Once", **given}).json
    assert re.fullmatch(pattern, text["choices"][0]["text"])


def test_samplers_of_llama_server(server: Running) -> None:
    """Each of them leaves one token, the best."""
    best = server.ask("/v1/completions", {"prompt": "Once upon", "temperature": 0, "max_tokens": 6}).json["choices"]
    alone: list[dict[str, Any]] = [
        {"top_n_sigma": 1e-4}, {"samplers": ["top_k", "temperature"], "top_k": 1},
        {"mirostat": 2, "mirostat_tau": 0, "temperature": 0.01}, {"dynatemp_range": 1e-3, "temperature": 1e-4},
    ]  # fmt: skip
    for fields in alone:
        given = {"prompt": "Once upon", "temperature": 1, "max_tokens": 6, **fields}
        assert server.ask("/v1/completions", given).json["choices"] == best, fields
    varied = {"xtc_probability": 1, "xtc_threshold": 0.01, "dry_multiplier": 5, "dry_sequence_breakers": []}
    given = {"prompt": "Once upon", "temperature": 0.7, "max_tokens": 6, **varied}
    assert server.ask("/v1/completions", given).json["choices"] != best


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({}, "messages"),
        ({"messages": HELLO, "temperature": "hot"}, "temperature"),
        ({"messages": HELLO, "top_p": 1.5}, "top_p"),
        ({"messages": HELLO, "max_tokens": True}, "max_tokens"),
        ({"messages": HELLO, "max_tokens": 1.5}, "max_tokens"),
        ({"messages": HELLO, "n": 3}, "n"),
        ({"messages": HELLO, "stop": [""]}, "stop"),
        ({"messages": HELLO, "stop": ["a"] * 17}, "stop"),
        ({"messages": HELLO, "top_logprobs": 3}, "top_logprobs"),
        ({"messages": HELLO, "logit_bias": {"a": 1}}, "logit_bias"),
        ({"messages": HELLO, "logit_bias": {str(i): 1 for i in range(1001)}}, "logit_bias"),
        ({"messages": HELLO, "mirostat": 3}, "mirostat"),
        ({"messages": HELLO, "samplers": ["top_z"]}, "samplers"),
        ({"messages": HELLO, "grammar": "root ::= ("}, "grammar"),
        ({"messages": HELLO, "grammar": 'root ::= "a"', "guided_regex": "a"}, "grammar"),
        ({"messages": HELLO, "functions": [{"name": "f"}]}, "functions"),
        ({"messages": HELLO, "response_format": {"type": "xml"}}, "response_format.type"),
        ({"messages": HELLO, "tool_choice": "required"}, "tool_choice"),
        ({"messages": HELLO, "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"messages": HELLO, "tools": [{"type": "function"}]}, "tools[0].function"),
        ({"messages": HELLO, "audio": {"voice": "x"}}, "audio"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "a " * 300}]}, "messages"),
        ({"messages": HELLO, "logit_bias": {"99999": 1}}, "logit_bias"),
        ({"messages": HELLO, "max_tokens": 3, "n_predict": 4}, "n_predict"),
        ({"messages": HELLO, "web_search_options": {}}, "web_search_options"),
        ({"messages": HELLO, "verbosity": "low"}, "verbosity"),
        ({"messages": HELLO, "min_tokens": 5}, "min_tokens"),
        ({"messages": HELLO, "continue_final_message": True}, "continue_final_message"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_mistake_is_an_error_object_that_names_the_field(server: Running, body: Any, param: str) -> None:
    answered = server.ask("/v1/chat/completions", body)
    assert answered.status == 400
    error = answered.error
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert error["message"].startswith((param, "Expected", "Object"))
    assert "Traceback" not in error["message"]


def test_a_mistake_in_a_completion_names_the_field(server: Running) -> None:
    """Named regression: with echo, an unknown token was a failure of the server."""
    wrong = (
        {"prompt": [[99999]]},
        {"prompt": [[99999]], "echo": True},
        {"prompt": [[-1]], "echo": True},
        {"prompt": "a" * 9999},
        {"prompt": [1] * 300},
    )
    for body in wrong:
        assert server.ask("/v1/completions", body).error["param"] == "prompt"
    # log probabilities of the prompt are not computed: a client that measures with them must not get others
    echoed = server.ask("/v1/completions", {"prompt": "a", "echo": True, "logprobs": 1, "max_tokens": 1})
    assert (echoed.status, echoed.error["param"]) == (400, "logprobs")
    answered = server.ask("/v1/responses", {"input": "a", "text": {"format": {"type": "x"}}})
    assert answered.error["param"] == "text.format.type"


def test_other_names_of_fields(server: Running) -> None:
    """Of llama-server and vLLM: to ignore them would change the answer."""
    given = {"prompt": "Once upon a time", "temperature": 0}
    short = server.ask("/v1/completions", {**given, "n_predict": 3}).json
    assert short["usage"]["completion_tokens"] == 3
    names = ("repeat_penalty", "repetition_penalty")
    texts = [server.ask("/v1/completions", {**given, "max_tokens": 30, name: 1.8}).json["choices"] for name in names]
    assert texts[0] == texts[1] != server.ask("/v1/completions", {**given, "max_tokens": 30}).json["choices"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[1]", b"null", b'{"prompt": "\xff"}', b'{"prompt": NaN}', b'{"prompt": "a", "temperature": 1e999}',
     b'{"prompt": "a", "x": ' + b"[" * 70 + b"]" * 70 + b"}", b'{"prompt": "\\ud800"}'],
    ids=range(9),
)  # fmt: skip
def test_what_is_not_json_is_refused(server: Running, body: bytes) -> None:
    assert server.ask("/v1/completions", body).status == 400


def test_fields_that_change_nothing_are_accepted(server: Running) -> None:
    more = {"user": "me", "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "cache_prompt": False,
            "stop": None, "seed": None, "tools": None, "response_format": {"type": "text"}, "zzz": 1}  # fmt: skip
    assert server.ask("/v1/chat/completions", {"messages": HELLO, "max_tokens": 1, **more}).status == 200


def test_content_may_be_parts(server: Running) -> None:
    parts = [{"type": "text", "text": "Once upon"}, {"type": "text", "text": "a time"}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    text = server.ask("/apply-template", {"messages": messages}).json["prompt"]
    assert "<|im_start|>system\nBe brief." in text
    assert "<|im_start|>user\nOnce upon\na time<|im_end|>" in text


def test_about_the_server(server: Running) -> None:
    assert server.ask("/health").json == {"status": "ok"}
    props = server.ask("/props").json
    assert props["default_generation_settings"]["n_ctx"] == 256
    assert props["total_slots"] == len(server.ask("/slots").json) == 2
    text = server.ask("/metrics").body.decode()
    assert "kernmill_slots 2\n" in text
    assert 'kernmill_requests_total{path="/health",status="200"}' in text
    assert 'kernmill_first_token_seconds_bucket{le="+Inf"}' in text
    for line in text.splitlines():
        assert line.startswith("#") or len(line.rsplit(" ", 1)) == 2
        assert line.startswith("#") or float(line.rsplit(" ", 1)[1]) >= 0


def test_paths_and_methods(server: Running) -> None:
    assert server.ask("/nowhere").status == 404
    refused = server.ask("/v1/completions", method="DELETE")
    assert refused.status == 405
    assert "POST" in refused.headers["allow"]
    assert server.ask("/v1/completions").status == 405
    assert json.loads(server.ask("/v1/completions/../x").body)["error"]["type"] == "not_found_error"


def test_a_full_context_is_shifted(stories: str) -> None:
    given = {"prompt": "Once upon a time", **GREEDY, "max_tokens": 60, "ignore_eos": True}
    for keep, count in ((None, 28), (2, 60)):
        with running({"stories": stories}, ServerOptions(slots=1, context=32, keep=keep), loaded) as server:
            answer = server.ask("/v1/completions", given).json
            assert answer["usage"]["completion_tokens"] == count
