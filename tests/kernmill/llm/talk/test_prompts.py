"""Messages as templates expect them, and what must be called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kernmill.ir import SettingError
from kernmill.llm import Model
from kernmill.llm.talk.prompts import Prompts, message_for_template


def test_messages_as_templates_expect_them() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "hm", "audio": 1}
    assert message_for_template(message, 0) == {
        "role": "assistant", "content": "", "reasoning_content": "hm",
        "tool_calls": [{**call, "function": {"name": "f", "arguments": {"a": 1}}}],
    }  # fmt: skip
    with pytest.raises(SettingError):
        message_for_template({**message, "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}, 0)


HARMONY = (  # as gpt-oss's template writes messages
    "{% for m in messages %}{% if m.tool_calls %}{% if m.content and m.thinking %}{{ raise_exception('both') }}"
    "{% endif %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|><|start|>assistant to=functions."
    "{{ m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>"
    "{{ m.tool_calls[0].function.arguments|tojson }}<|call|>{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}"
    "<|end|>{% endif %}{% endfor %}<|start|>assistant"
)


def test_tool_calls_of_gpt_oss_in_a_conversation(gguf: Callable[[str], Any]) -> None:
    """Its template takes reasoning as `thinking`, and not together with an answer; replies end after <|call|>."""
    path = gguf("stories260K/stories260Ktok512.gguf").path
    with Model.from_gguf(path, capacity=256) as model:
        assert model.tokenizer is not None
        prompts = Prompts(model, model.tokenizer, 256, HARMONY)
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": [call]},
            {"role": "tool", "content": "2", "tool_call_id": "1"},
        ]
        tools: list[dict[str, Any]] = [
            {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        ]
        assert prompts.plain(prompts.rendered(messages, tools, {})) == (
            "<|start|>user<|message|>hi<|end|><|start|>assistant<|channel|>analysis<|message|>hm<|end|>"
            '<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>'
            "<|start|>tool<|message|>2<|end|><|start|>assistant"
        )
        prompt = prompts.conversation(messages, tools=tools)
        assert prompt.format is not None
        reader = prompt.format.reader(tools)
        text = ' to=functions.f<|channel|>commentary json<|message|>{"a": 2}<|call|>'
        *streamed, call_part = *reader.push(text), *reader.finish()
        assert "".join(part.delta.arguments for part in streamed if part.delta) == '{"a": 2}'
        assert call_part.call is not None
        assert (call_part.call.name, call_part.call.arguments) == ("f", '{"a": 2}')
