"""Messages as templates expect them, and what must be called."""

from __future__ import annotations

import pytest

from kernmill.ir import SettingError
from kernmill.llm.talk.prompts import message_for_template


def test_messages_as_templates_expect_them() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "hm", "audio": 1}
    assert message_for_template(message, 0) == {
        "role": "assistant", "content": "", "reasoning_content": "hm",
        "tool_calls": [{**call, "function": {"name": "f", "arguments": {"a": 1}}}],
    }  # fmt: skip
    with pytest.raises(SettingError):
        message_for_template({**message, "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}, 0)
