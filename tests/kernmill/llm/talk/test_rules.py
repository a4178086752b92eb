"""What a reply must follow: response formats, required calls of every format, reasoning before them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest

from kernmill.ir import SettingError
from kernmill.llm import LLM
from kernmill.llm.talk.call_formats import FORMATS
from kernmill.llm.talk.replies import HARMONY, ReplyFormat
from kernmill.llm.talk.rules import chosen_tool, reply_rule
from kernmill.llm.tokenizer import Tokenizer

pytest.importorskip("llguidance")
TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}{# <tool_call> #}"
MESSAGES = [{"role": "user", "content": "Once upon a time"}]
CITY = {"type": "object", "properties": {"city": {"enum": ["Ulm", "Bonn"]}}, "required": ["city"],
        "additionalProperties": False}  # fmt: skip
TOOLS: list[Any] = [{"function": {"name": "weather", "parameters": CITY}}, {"function": {"name": "stop"}}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY}}


@pytest.fixture(scope="module")
def llm(gguf: Callable[[str], Any]) -> Generator[LLM]:
    path = gguf("stories260K/stories260Ktok512.gguf").path
    with LLM(path, slots=2, context=128, chunk=32, template=TEMPLATE) as found:
        yield found


@pytest.mark.parametrize("seed", range(3))
def test_a_reply_has_its_format(llm: LLM, seed: int) -> None:
    options: dict[str, Any] = {"seed": seed, "temperature": 1.5, "max_tokens": 60}
    assert json.loads(llm.chat(MESSAGES, response_format=SCHEMA, **options).text)["city"] in ("Ulm", "Bonn")
    assert json.loads(llm("A", response_format=SCHEMA, **options).text)["city"] in ("Ulm", "Bonn")
    assert llm("A", response_format={"type": "choice", "choice": ["a (b)", "c|d"]}, **options).text in ("a (b)", "c|d")
    assert re.fullmatch("[ab]{3}", llm("A", response_format={"type": "regex", "regex": "[ab]{3}"}, **options).text)
    reply = llm("A", response_format={"type": "grammar", "grammar": 'root ::= "x" [0-9] "y"'}, **options)
    assert re.fullmatch(r"x\dy", reply.text)
    assert reply.finish_reason == "stop"
    assert llm.chat(MESSAGES, response_format={"type": "json_object"}, **options).text.startswith("{")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_required_call(llm: LLM, choice: Any) -> None:
    reply = llm.chat(MESSAGES, tools=TOOLS, tool_choice=choice, temperature=1.5, seed=4, max_tokens=90)
    (call,) = reply.tool_calls
    assert reply.finish_reason == "tool_calls"
    assert call.name in (("weather", "stop") if choice == "required" else ("weather",))
    assert json.loads(call.arguments) == {} if call.name == "stop" else json.loads(call.arguments)["city"]
    both = llm.chat(MESSAGES, tools=TOOLS, response_format=SCHEMA, temperature=1.5, seed=4, max_tokens=90)
    assert both.tool_calls or json.loads(both.text)["city"]


@pytest.mark.parametrize("name", [*(row.name for row in FORMATS if row.around is not None), "harmony"])
def test_what_a_grammar_requires_is_read_as_a_call(name: str) -> None:
    row = next((row for row in FORMATS if row.name == name), None)
    format = ReplyFormat(row) if row is not None else ReplyFormat.of(HARMONY + "<|start|>")
    assert format.around is not None
    before, after = format.around
    reader = format.reader(TOOLS)
    parts = [*reader.push(before.replace("NAME", "weather") + '{"city": "Ulm"}' + after), *reader.finish()]
    (call,) = [part.call for part in parts if part.call is not None]
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Ulm"})


def test_a_rule_of_control_tokens_and_of_forced_tokens(gguf: Callable[[str], Any]) -> None:
    """Qwen's vocabulary; `<|im_start|>` stands for a marker that is a control token."""
    tokenizer = Tokenizer(gguf("llama_vocab/ggml-vocab-qwen2.gguf").metadata)
    row = FORMATS[[one.name for one in FORMATS].index("blocks")]
    controls = type(row)("x", (), ("<|im_start|>",), None, row.reader, around=('<|im_start|>{"n": "NAME", ', "}"))
    rule = reply_rule(tokenizer, None, ReplyFormat(controls), TOOLS, "required")
    assert rule is not None
    mask, text = rule.start(), '<|im_start|>{"n": "weather", {"city": "Ulm"}}'
    ids = tokenizer.encode(text, add_special=False, parse_special=True)
    for token in ids:
        allowed = mask.allowed(len(tokenizer))
        assert allowed[token]
        mask.accept(token)
    assert set(np.flatnonzero(mask.allowed(len(tokenizer)))) <= tokenizer.end_ids


def test_a_rule_begins_after_reasoning(llm: LLM) -> None:
    tokenizer = llm.tokenizer
    size = len(tokenizer)
    form = {"type": "choice", "choice": ["yes", "no"]}
    rule = reply_rule(tokenizer, form, ReplyFormat(None, ("<think>", "</think>"), is_inside=True))
    assert rule is not None
    mask = rule.start()
    for token in tokenizer.encode("no, hm </think>", add_special=False):
        allowed = mask.allowed(size)
        assert allowed.sum() == size - len(tokenizer.end_ids)
        mask.accept(token)
    assert mask.allowed(size).sum() < 10
    plain = reply_rule(tokenizer, form, ReplyFormat(None, ("<think>", "</think>")))
    assert plain is not None
    assert plain.start().allowed(size).sum() < 10
    harmony = reply_rule(tokenizer, form, ReplyFormat(is_harmony=True))
    assert harmony is not None
    mask = harmony.start()
    text = "<|channel|>analysis<|message|>no<|end|><|start|>assistant<|channel|>final<|message|>"
    for token in tokenizer.encode(text, add_special=False):
        assert mask.allowed(size).sum() > 400
        mask.accept(token)
    assert mask.allowed(size).sum() < 10


def test_the_choice_of_a_tool() -> None:
    tools = [{"function": {"name": name}} for name in "fg"]
    assert chosen_tool(tools, "auto") is chosen_tool(tools, None) is None
    assert chosen_tool(tools, "required") == tools
    assert chosen_tool(tools, {"type": "function", "function": {"name": "g"}}) == tools[1:]
    with pytest.raises(SettingError):
        chosen_tool(tools, {"function": {"name": "h"}})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type: xml is not supported: text, json_object, json_"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema: must have a schema."),
        ({"response_format": {"type": "choice", "choice": []}}, "response_format.choice: must be a list of texts"),
        ({"response_format": {"type": "regex", "regex": 1}}, "response_format.regex: must be a text."),
        ({"response_format": {"type": "regex", "regex": "("}}, "response_format: the regular expression cannot be "),
        ({"response_format": {"type": "json_object", "schema": {"type": "x"}}}, "response_format: the JSON schema can"),
        ({"tools": TOOLS, "response_format": {"type": "regex", "regex": "a"}}, "response_format: only JSON goes with"),
        ({"tools": [{"function": {"name": "f", "parameters": {"$ref": "#"}}}], "tool_choice": "required"},
            "tools[0].function.parameters: the JSON schema never ends"),
    ],
)  # fmt: skip
def test_mistakes(llm: LLM, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError) as error:
        llm.chat(MESSAGES, **options)
    assert str(error.value).startswith(sentence)
