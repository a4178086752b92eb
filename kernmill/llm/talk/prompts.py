"""Prompts: texts and messages in OpenAI's form to tokens, with the format and the grammar of the reply."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kernmill.ir import SettingError

from ..chat import ChatTemplate
from ..generate import Model
from ..tokenizer import Tokenizer
from .guarded import PromptGuard
from .replies import ReplyFormat
from .reply import Prompt
from .rules import reply_rule

__all__ = ["Prompts", "message_for_template"]

_ROLES = ("system", "developer", "user", "assistant", "tool")


class Prompts:
    """Makes prompts for a model. `template`: Jinja source that replaces that of the file; `context`: tokens of a text.

    Raises:
        FormatError: the template is not valid.
    """

    def __init__(self, model: Model, tokenizer: Tokenizer, context: int, template: str | None = None) -> None:
        self.tokenizer, self.context = tokenizer, context
        self._guard = PromptGuard(tokenizer)
        self.template = ChatTemplate.of(model.metadata, tokenizer)
        if template is not None:
            self.template = self.template.with_source(template)
        self._is_harmony = ReplyFormat.of(self.template.source).is_harmony

    def encode(self, prompt: str | Sequence[int]) -> list[int]:
        """Return the tokens of a prompt.

        Raises:
            SettingError: it is longer than the context.
        """
        if not isinstance(prompt, str):
            return list(prompt)
        self.check_length(prompt)
        return self.tokenizer.encode(prompt)

    def check_length(self, text: str) -> None:
        """Check the length of a text before it is tokenized, which takes much memory for a long one.

        Raises:
            SettingError: it has more characters than the context can take.
        """
        most = self.context * self.tokenizer.longest
        if len(text) > most:
            raise SettingError(
                f"the prompt has {len(text)} characters, and the context of {self.context} tokens takes at "
                f"most {most}. Shorten it."
            )

    def conversation(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: str | Mapping[str, Any] | None = None,
        response_format: Mapping[str, Any] | None = None,
        template_values: Mapping[str, Any] | None = None,
        splits_reasoning: bool = True,
    ) -> Prompt:
        """Return the prompt of a conversation in OpenAI's form.

        tool_choice      "none", "auto", "required", or {"function": {"name": ..}}
        response_format  {"type": "json_object"}, or {"type": "json_schema", "json_schema": {"schema": ..}}; also
                         {"type": "regex" | "grammar" (GBNF) | "choice" (a list of texts), that word: ..}.
        template_values  variables of the template, such as enable_thinking.
        splits_reasoning  False: reasoning stays in the answer, with its marks

        Raises:
            SettingError: a message that is not valid, or what the model's template cannot express.
        """
        given = () if tool_choice == "none" else tuple(tools)
        text = self.rendered(messages, given, template_values or {})
        format = replace(ReplyFormat.of(self.template.source, text), splits=splits_reasoning)
        if format.is_harmony and not splits_reasoning:
            raise SettingError("reasoning_format: this model answers in channels, which are always apart.")
        if given and not format.is_harmony and format.calls is None:
            raise SettingError("tools: the model's chat template has no form for tool calls. Choose another model.")
        rule = reply_rule(self.tokenizer, response_format, format, given, tool_choice)
        return Prompt(self._guard.tokens(text), format, given, rule)

    def rendered(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], values: Mapping[str, Any]
    ) -> str:
        """Return the text of a conversation, with marks in spelled control tokens.

        Raises:
            SettingError: a message that is not valid, or a text that is too long.
        """
        checked = [message_for_template(message, index) for index, message in enumerate(messages)]
        for message in checked:
            if self._is_harmony and "reasoning_content" in message:  # gpt-oss has another name for it
                message["thinking"] = message["reasoning_content"]
                message["content"] = "" if "tool_calls" in message else message["content"]  # it takes one of both
            self.check_length(message.get("content") or "")
        reserved = {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"}
        own = {name: value for name, value in values.items() if name not in reserved}
        text = self.template.render(self._guard.marked(checked), tools=self._guard.marked(list(tools)) or None, **own)
        self.check_length(text)
        return text

    def prompt(self, text: str | Sequence[int], response_format: Mapping[str, Any] | None = None) -> Prompt:
        """Return the prompt of a completion."""
        return Prompt(self.encode(text), grammar=reply_rule(self.tokenizer, response_format))

    def plain(self, text: str) -> str:
        """Return the result of `rendered` without marks."""
        return self._guard.text(text)


def message_for_template(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return a message as templates expect it: one text, role developer as system, arguments of calls as objects.

    Raises:
        SettingError: an unknown role, or content that is not text.
    """
    where = f"messages[{index}]"
    role = message.get("role")
    if role not in _ROLES:
        raise SettingError(f"{where}.role: must be one of {', '.join(_ROLES)}.")
    found: dict[str, Any] = {"role": "system" if role == "developer" else role}
    found["content"] = _text_of(message.get("content"), where)
    for name in ("name", "tool_call_id"):
        if isinstance(message.get(name), str):
            found[name] = message[name]
    thought = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(thought, str):
        found["reasoning_content"] = thought
    calls = message.get("tool_calls")
    if calls and not isinstance(calls, list):
        raise SettingError(f"{where}.tool_calls: must be a list.")
    if calls:
        found["tool_calls"] = [_call_of(call, f"{where}.tool_calls[{n}]") for n, call in enumerate(calls)]
    return found


def _text_of(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise SettingError(f"{where}.content: must be a text or a list of parts.")
    texts: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind == "refusal" and isinstance(part.get("refusal"), str):
            texts.append(part["refusal"])
        else:
            raise SettingError(f"{where}.content: a part of type {str(kind)[:40]} is not supported. Give text.")
    return "\n".join(texts)


def _call_of(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise SettingError(f"{where}: must have function.name.")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise SettingError(f"{where}.function.arguments: must be JSON.") from None
    return {
        "id": str(call.get("id", "")), "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }  # fmt: skip
