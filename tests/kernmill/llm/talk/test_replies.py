"""Replies as the main families of models write them, cut at every place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kernmill.llm.talk import ReplyFormat, ReplyPart
from kernmill.llm.talk.replies import ReplyReader

TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}}}}},
    {"type": "function", "function": {"name": "now"}},
]  # fmt: skip
CALL = ("weather", {"city": "Ulm", "days": 2})
D = {name: f"<\uff5ctool\u2581{name.replace('_', chr(0x2581))}\uff5c>" for name in (
    "calls_begin", "calls_end", "call_begin", "call_end", "sep")}  # fmt: skip
ARGUMENTS = '{"city": "Ulm", "days": 2}'
FAMILIES: dict[str, tuple[str, str]] = {  # what shows it in the template, and the call in the text
    "hermes": ("<tool_call>", f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'),
    "qwen3-coder": (
        "<tool_call>",
        "<tool_call>\n<function=weather>\n<parameter=city>\nUlm\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
        "</function>\n</tool_call>",
    ),
    "glm": (
        "<tool_call>",
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Ulm</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>2</arg_value>\n</tool_call>",
    ),
    "llama3": ("<|python_tag|>", f'{{"name": "weather", "parameters": {ARGUMENTS}}}'),
    "llama3 tagged": ("<|python_tag|>", f'<|python_tag|>{{"name": "weather", "parameters": {ARGUMENTS}}}'),
    "llama4": ("[func_name1(params_name1=", '[weather(city="Ulm", days=2)]'),
    "mistral7": ("[TOOL_CALLS]", f'[TOOL_CALLS][{{"name": "weather", "arguments": {ARGUMENTS}}}]'),
    "mistral11": ("[TOOL_CALLS]", f"[TOOL_CALLS]weather[ARGS]{ARGUMENTS}"),
    "deepseek3": (
        D["calls_begin"],
        f"{D['calls_begin']}{D['call_begin']}function{D['sep']}weather\n```json\n{ARGUMENTS}\n```{D['call_end']}"
        f"{D['calls_end']}",
    ),
    "deepseek3.1": (
        D["calls_begin"],
        f"{D['calls_begin']}{D['call_begin']}weather{D['sep']}{ARGUMENTS}{D['call_end']}{D['calls_end']}",
    ),
    "kimi": (
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        f"{ARGUMENTS}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "minimax": (
        "<minimax:tool_call>",
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Ulm</parameter>\n'
        '<parameter name="days">2</parameter>\n</invoke>\n</minimax:tool_call>',
    ),
    "gemma4": ("<|tool_call>", '<|tool_call>call:weather{city:<|"|>Ulm<|"|>,days:2}<tool_call|>'),
    "harmony": (
        "<|start|><|channel|>",
        "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>" + ARGUMENTS + "<|call|>",
    ),
}


def read(format: ReplyFormat, pieces: list[str], tools: Any = TOOLS) -> tuple[str, str, list[tuple[str, Any]]]:
    """The answer, the reasoning and the calls of a reply that comes in pieces."""
    reader = format.reader(tools)

    def parts() -> Iterator[ReplyPart]:
        for piece in pieces:
            yield from reader.push(piece)
        yield from reader.finish()

    found = list(parts())
    calls = [(part.call.name, json.loads(part.call.arguments)) for part in found if part.call is not None]
    assert [part.index for part in found if part.call is not None] == list(range(len(calls)))
    for index, call in enumerate(part.call for part in found if part.call is not None):
        deltas = [part.delta for part in found if part.index == index and part.delta is not None]
        assert (deltas[0].id, deltas[0].name) == (call.id, call.name)
        assert "".join(delta.arguments for delta in deltas) == call.arguments
    return "".join(part.content for part in found), "".join(part.reasoning for part in found), calls


def cuts(text: str) -> Iterator[list[str]]:
    yield [text]
    yield list(text)
    for size in (2, 5, 11):
        yield [text[start : start + size] for start in range(0, len(text), size)]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_is_read(family: str) -> None:
    sign, text = FAMILIES[family]
    for pieces in cuts(text):
        assert read(ReplyFormat.of(sign), pieces) == ("", "", [CALL])


@pytest.mark.parametrize(
    "family", ["hermes", "llama3", "llama3 tagged", "mistral11", "deepseek3", "deepseek3.1", "kimi", "harmony"]
)
def test_arguments_come_as_they_are_written(family: str) -> None:
    """They came at the end of a call, which is long where it writes a file."""
    sign, text = FAMILIES[family]
    reader = ReplyFormat.of(sign).reader(TOOLS)
    given = json.dumps({"city": 'a "{[" \\ ' + "x" * 40, "days": 2})
    shown = ""
    for sign in text.partition(ARGUMENTS)[0] + given:
        new = [part.delta.arguments for part in reader.push(sign) if part.delta is not None]
        shown += "".join(new)
        assert not shown or new
    assert shown == given


def test_two_calls_in_one_block_come_as_they_are_written() -> None:
    """The second call of a block has an index of its own, and what is between them is dropped."""
    sign, text = FAMILIES["deepseek3.1"]
    inner = text.removeprefix(D["calls_begin"]).removesuffix(D["calls_end"])
    for pieces in cuts(D["calls_begin"] + inner + inner + D["calls_end"]):
        assert read(ReplyFormat.of(sign), pieces) == ("", "", [CALL, CALL])
    sign, text = FAMILIES["llama3"]
    for pieces in cuts(f"{text}; {text}"):
        assert read(ReplyFormat.of(sign), pieces) == ("", "", [CALL, CALL])


def test_a_call_that_is_cut_off_has_what_was_written() -> None:
    sign, text = FAMILIES["hermes"]
    reader = ReplyFormat.of(sign).reader(TOOLS)
    parts = [*reader.push(text.partition(', "days')[0]), *reader.finish()]
    (call,) = [part.call for part in parts if part.call is not None]
    assert (call.name, call.arguments) == ("weather", '{"city": "Ulm"')


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in ("llama3", "llama4", "harmony", "llama3 tagged")])
def test_text_before_a_call_is_the_answer(family: str) -> None:
    sign, text = FAMILIES[family]
    for pieces in cuts("I look. " + text):
        assert read(ReplyFormat.of(sign), pieces) == ("I look. ", "", [CALL])


@pytest.mark.parametrize("family", ["hermes", "qwen3-coder", "glm", "mistral11"])
def test_several_calls(family: str) -> None:
    sign, text = FAMILIES[family]
    for pieces in cuts(text + "\n" + text):
        assert read(ReplyFormat.of(sign), pieces) == ("", "", [CALL, CALL])


@pytest.mark.parametrize("family", FAMILIES)
def test_what_only_looks_like_a_call_is_text(family: str) -> None:
    sign, text = FAMILIES[family]
    if family == "harmony":
        return
    broken = text.replace('"', "'").replace("weather", "we ather").replace("[ARGS]", "[ARG]")[:-3]
    for pieces in cuts(broken):
        content, thought, calls = read(ReplyFormat.of(sign), pieces)
        assert thought == ""
        assert content == broken if not calls else "we ather" in calls[0][0]


def test_without_tools_a_call_is_text() -> None:
    sign, text = FAMILIES["hermes"]
    for pieces in cuts(text):
        assert read(ReplyFormat.of(sign), pieces, ()) == (text, "", [])


@pytest.mark.parametrize(("open_", "close"), [("<think>", "</think>"), ("[THINK]", "[/THINK]")])
def test_reasoning_is_apart(open_: str, close: str) -> None:
    template = f"... {open_} <tool_call>"
    call = FAMILIES["hermes"][1]
    for pieces in cuts(f"{open_}\nHm. 1 < 2\n{close}\n\nYes.{call}"):
        assert read(ReplyFormat.of(template), pieces) == ("Yes.", "Hm. 1 < 2\n", [CALL])
    for pieces in cuts(f"Hm.{close}Yes."):  # the prompt opened it
        assert read(ReplyFormat.of(template, f"user: hi\n{open_}\n"), pieces) == ("Yes.", "Hm.", [])
    for pieces in cuts("Yes. 1 < 2 <"):
        assert read(ReplyFormat.of(template), pieces) == ("Yes. 1 < 2 <", "", [])
    for pieces in cuts(f"{open_}Hm"):  # cut off
        assert read(ReplyFormat.of(template), pieces) == ("", "Hm", [])


def test_reasoning_may_stay_in_the_answer() -> None:
    """Named regression: reasoning_format none was accepted, and reasoning was apart all the same."""
    reader = ReplyFormat(thought=("<think>", "</think>"), splits=False).reader()
    parts = [*reader.push("<think>so</think>it is"), *reader.finish()]
    assert "".join(part.content for part in parts) == "<think>so</think>it is"
    assert not any(part.reasoning for part in parts)


def test_channels_of_harmony() -> None:
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes < no.<|return|>"
    for pieces in cuts(text):
        assert read(ReplyFormat.of("<|start|><|channel|>"), pieces) == ("Yes < no.", "Hm.", [])
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant" + FAMILIES["harmony"][1]
    for pieces in cuts(text):
        assert read(ReplyFormat.of("<|start|><|channel|>"), pieces) == ("", "Hm.", [CALL])


def test_a_long_call_costs_time_in_proportion_to_its_length() -> None:
    """All text of a call was searched for its end at each token."""
    reader = ReplyFormat.of("<tool_call>").reader(TOOLS)
    assert isinstance(reader, ReplyReader)
    head, tail = '<tool_call>{"name": "weather", "arguments": {"city": "', '"}}</tool_call>'
    parts = [*reader.push(head)]
    for _ in range(50_000):
        parts += reader.push("xy")
        assert len(reader._waiting) <= len(head)
    for sign in tail:
        parts += reader.push(sign)
    (call,) = [part.call for part in parts if part.call is not None]
    assert json.loads(call.arguments) == {"city": "xy" * 50_000}


def test_text_is_not_held_back_longer_than_it_may_begin_a_marker() -> None:
    reader = ReplyFormat.of("<tool_call>").reader(TOOLS)
    assert [part.content for part in reader.push("a <tool_")] == ["a "]
    assert [part.content for part in reader.push("x")] == ["<tool_x"]
