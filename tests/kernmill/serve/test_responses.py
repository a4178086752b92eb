"""Tool calls and reasoning over HTTP, with an engine that is told its text."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import pytest

from kernmill.serve.limits import ServerOptions

from .conftest import Running, loaded, running
from .scripted import ScriptedEngine

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
    "{{ c.function.name }} {{ c.function.arguments.city }}</tool_call>{% endfor %}\n{% endfor %}"
    "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}[assistant]<think>{{ enable_thinking }}"
)
WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
TOOLS = [{"type": "function", "function": WEATHER}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>'
MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "Weather in Ulm?"}]


@pytest.fixture(scope="module")
def told(stories: str) -> Generator[Running]:
    patch = pytest.MonkeyPatch()
    patch.setattr("kernmill.llm.talk.llm.Engine", ScriptedEngine)
    with running({"stories": stories}, ServerOptions(template=TEMPLATE), loaded) as found:
        yield found
    patch.undo()


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_text(text: str) -> None:
        monkeypatch.setattr(ScriptedEngine, "text", text)

    return set_text


def chat(server: Running, **more: Any) -> Any:
    return server.ask("/v1/chat/completions", {"messages": MESSAGES, **more})


def test_a_call_over_http(told: Running, says: Any) -> None:
    says(f"Hm.</think>I look.{CALL}")
    choice = chat(told, tools=TOOLS).json["choices"][0]
    message = choice["message"]
    assert (choice["finish_reason"], message["content"], message["reasoning_content"]) == (
        "tool_calls",
        "I look.",
        "Hm.",
    )
    (call,) = message["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "weather")
    assert json.loads(call["function"]["arguments"]) == {"city": "Ulm"}
    events = chat(told, tools=TOOLS, stream=True).events
    deltas = [event["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("content") or "" for delta in deltas) == "I look."
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Hm."
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert {one["index"] for one in calls} == {0}
    assert calls[0]["function"] == {"name": "weather", "arguments": ""}
    assert json.loads("".join(one["function"]["arguments"] for one in calls)) == {"city": "Ulm"}
    assert len(calls) > 3  # they come as they are written
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_without_tools_or_with_none_a_call_is_text(told: Running, says: Any) -> None:
    says(f"</think>{CALL}")
    for more in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        choice = chat(told, **more).json["choices"][0]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", CALL)


def test_the_openai_package_collects_a_call(told: Running, says: Any) -> None:
    openai = pytest.importorskip("openai")
    says(f"</think>{CALL}{CALL}")
    with (
        openai.OpenAI(base_url=f"{told.url}/v1", api_key="x") as client,
        client.chat.completions.stream(model="x", messages=MESSAGES, tools=TOOLS) as stream,
    ):
        message = stream.get_final_completion().choices[0].message
    assert [call.function.name for call in message.tool_calls] == ["weather"] * 2
    assert len({call.id for call in message.tool_calls}) == 2


def test_a_result_goes_back(told: Running) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}
    more = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "sun", "tool_call_id": "1"},
    ]
    given = {"messages": [*MESSAGES, *more], "tools": TOOLS, "chat_template_kwargs": {"enable_thinking": False}}
    text = told.ask("/apply-template", given).json["prompt"]
    assert text == (
        "[user]Weather in Ulm?[assistant]<tool_call>weather Ulm</tool_call>[tool]sunweather[assistant]<think>False"
    )


def test_a_stop_string_does_not_end_the_reasoning(told: Running, says: Any) -> None:
    says("Hm. END</think>Yes. END no")
    message = chat(told, stop="END").json["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm. END", "Yes. ")


def test_responses(told: Running, says: Any) -> None:
    says(f"Hm.</think>I look.{CALL}")
    tools = [{"type": "function", **WEATHER}]
    body = told.ask("/v1/responses", {"input": "Weather in Ulm?", "instructions": "Be brief.", "tools": tools}).json
    assert (body["object"], body["status"]) == ("response", "completed")
    assert [item["type"] for item in body["output"]] == ["reasoning", "message", "function_call"]
    assert json.loads(body["output"][2]["arguments"]) == {"city": "Ulm"}
    raw = told.ask("/v1/responses", {"input": "Weather in Ulm?", "tools": tools, "stream": True}).body.decode()
    events = [json.loads(part.split("data: ", 1)[1]) for part in raw.split("\n\n") if "data: " in part]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events][:2] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] == "response.completed"
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning", "message", "function_call"]
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == "I look."
    deltas = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == events[-1]["response"]["output"][2]["arguments"] == '{"city": "Ulm"}'


def test_responses_of_the_openai_package(told: Running, says: Any) -> None:
    openai = pytest.importorskip("openai")
    says("Hm.</think>Sun.")
    history: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "function_call", "call_id": "1", "name": "weather", "arguments": '{"city": "Ulm"}'},
        {"type": "function_call_output", "call_id": "1", "output": "sun"},
    ]
    with openai.OpenAI(base_url=f"{told.url}/v1", api_key="x") as client:
        answer = client.responses.create(model="x", input=history, store=False)
        assert answer.output_text == "Sun."
        with client.responses.stream(model="x", input=history) as stream:
            assert "".join(event.delta for event in stream if event.type == "response.output_text.delta") == "Sun."
            assert stream.get_final_response().output_text == "Sun."
        with pytest.raises(openai.BadRequestError) as error:
            client.responses.create(model="x", input="a", previous_response_id="resp_1")
        assert error.value.param == "previous_response_id"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "image"}]}, "input[0].type"),
        ({"input": "a", "background": True}, "background"),
        ({"input": "a", "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": "a", "truncation": "auto"}, "truncation"),
    ],
    ids=str,
)
def test_mistakes(told: Running, body: Any, param: str) -> None:
    answered = told.ask("/v1/responses", body)
    assert (answered.status, answered.error["param"]) == (400, param)
