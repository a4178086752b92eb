"""What a reply must follow: the grammar of a response format or of a tool call, after the model's reasoning."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from kernmill.ir import FormatError, SettingError

from ..grammar import Grammar, compact_schema
from ..masks import Mask, MaskSource
from ..tokenizer import Tokenizer
from .replies import ReplyFormat

__all__ = ["chosen_tool", "reply_rule"]

_FINAL = re.compile(r"<\|channel\|>\s*final[^<]*(<\|constrain\|>[^<]*)?<\|message\|>$")  # before an answer of gpt-oss
_KEPT = 256  # characters that are searched for the end of reasoning
Tools = Sequence[Mapping[str, Any]]


def reply_rule(
    tokenizer: Tokenizer,
    response_format: Mapping[str, Any] | None,
    format: ReplyFormat | None = None,
    tools: Tools = (),
    tool_choice: str | Mapping[str, Any] | None = None,
) -> MaskSource | None:
    """Return the grammar that a reply must follow; None: any text.

    With tools, a reply with a format may be a call instead, and must be one where `tool_choice` says so.

    Raises:
        SettingError: a choice or a format that is not supported, or a schema or grammar that cannot be followed.
    """
    chosen = chosen_tool(tools, tool_choice)
    form = None if response_format is None else _form(response_format)
    if chosen is None and form is None:
        return None
    if chosen is None and not tools:
        assert form is not None
        rule: MaskSource = _made_for("response_format", partial(Grammar, *form, tokenizer))
    else:
        if form is not None and form[0] != "json_schema" and chosen is None:
            raise SettingError("response_format: only JSON goes with tools. Leave one of them out.")
        answer = None if form is None or chosen is not None else form[1]
        rule = _call_rule(tokenizer, format or ReplyFormat(), tools if chosen is None else chosen, answer)
    return rule if format is None else _after_thought(rule, tokenizer, format, is_call=chosen is not None)


def chosen_tool(tools: Tools, choice: str | Mapping[str, Any] | None) -> Tools | None:
    """Return the tools of which one must be called; None: the model chooses.

    Raises:
        SettingError: an unknown choice, or an unknown tool.
    """
    if choice in (None, "none", "auto"):
        return None
    if not tools:
        raise SettingError("tool_choice: needs tools.")
    if choice == "required":
        return tools
    name = None
    if isinstance(choice, Mapping):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else choice.get("name")
    found = [tool for tool in tools if tool["function"]["name"] == name]
    if not found:
        raise SettingError("tool_choice: must be none, auto, required, or the name of one of the tools.")
    return found


def _form(given: Mapping[str, Any]) -> tuple[str, str] | None:
    """The kind of a grammar and its text; None: any text."""
    kind = given.get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return "json_schema", compact_schema(given.get("schema") or {"type": "object"})
    if kind == "json_schema":
        named = given.get("json_schema")
        schema = named.get("schema") if isinstance(named, Mapping) else None
        if not isinstance(schema, (Mapping, bool)):
            raise SettingError("response_format.json_schema: must have a schema.")
        return "json_schema", compact_schema(schema)
    if kind == "choice":
        choices = given.get("choice")
        if not isinstance(choices, list) or not choices or not all(isinstance(one, str) and one for one in choices):
            raise SettingError("response_format.choice: must be a list of texts, none of them empty.")
        return "choice", json.dumps(choices)
    if kind in ("regex", "grammar"):
        text = given.get(kind)
        if not isinstance(text, str):
            raise SettingError(f"response_format.{kind}: must be a text.")
        return ("gbnf" if kind == "grammar" else kind), text
    known = "text, json_object, json_schema, regex, choice, grammar"
    raise SettingError(f"response_format.type: {str(kind)[:40]} is not supported: {known}.")


def _made_for(field: str, make: Callable[[], Grammar]) -> Grammar:
    try:
        return make()
    except FormatError as error:
        raise SettingError(f"{field}: {error}") from error


def _call_rule(tokenizer: Tokenizer, format: ReplyFormat, tools: Tools, answer: str | None) -> Grammar:
    """A call of one of these tools, or JSON by the schema `answer`."""
    around = format.around
    if around is None:
        name = "harmony" if format.calls is None else format.calls.name
        raise SettingError(
            f"tool_choice: the calls of this model, of the form {name}, are not JSON, so that none can be required. "
            "Choose auto, and no response_format."
        )
    marks = {mark: tokenizer.tokens.index(mark) for mark in format.markers if mark in tokenizer.tokens}
    marks = {mark: token for mark, token in marks.items() if tokenizer.is_control(token)}
    rules: dict[str, str] = {}
    for n, tool in enumerate(tools):
        function = tool["function"]
        schema = function.get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False}
        _made_for(f"tools[{n}].function.parameters", partial(Grammar.of_schema, schema, tokenizer))
        before, after = (_spelled(part.replace("NAME", function["name"]), marks) for part in around)
        rules[f"call{n}"] = f"{before} arguments{n} {after}\narguments{n}: %json {compact_schema(schema)}"
    if answer is not None:
        _made_for("response_format", partial(Grammar, "json_schema", answer, tokenizer))
        rules["answer"] = f"content\ncontent: %json {answer}"
    lines = [f"start: {' | '.join(rules)}", *(f"{name}: {rule}" for name, rule in rules.items())]
    return _made_for("tools", partial(Grammar, "lark", "\n".join(lines), tokenizer))


def _spelled(text: str, marks: Mapping[str, int]) -> str:
    """A text in Lark's notation, control tokens in it by their ids."""
    if not text:
        return ""
    parts = re.split(f"({'|'.join(map(re.escape, marks)) or '(?!)'})", text)
    return " ".join(
        f"<[{marks[part]}]>" if part in marks else json.dumps(part, ensure_ascii=False) for part in parts if part
    )


def _after_thought(rule: MaskSource, tokenizer: Tokenizer, format: ReplyFormat, *, is_call: bool) -> MaskSource:
    if format.is_harmony:
        return rule if is_call else _Late(rule, tokenizer, _FINAL, frozenset(), is_inside=True)
    if format.thought is None:
        return rule
    begin, end = format.thought
    opens = frozenset((tokenizer.tokens.index(begin),)) if begin in tokenizer.tokens else frozenset[int]()
    return _Late(rule, tokenizer, re.compile(re.escape(end) + "$"), opens, is_inside=format.is_inside)


class _Late:
    """A grammar that begins after reasoning. `opens`: tokens with which reasoning may begin; `end`: what ends it;
    `is_inside`: the prompt, or the form of replies, has begun it."""

    def __init__(
        self, rule: MaskSource, tokenizer: Tokenizer, end: re.Pattern[str], opens: frozenset[int], *, is_inside: bool
    ) -> None:
        self.rule, self.tokenizer, self.end, self.opens, self.is_inside = rule, tokenizer, end, opens, is_inside

    def start(self) -> Mask:
        """Return the mask of a text that begins now."""
        return _LateMask(self)


class _LateMask:
    def __init__(self, late: _Late) -> None:
        self._late, self._mask = late, late.rule.start()
        self._stream, self._text = late.tokenizer.stream(show_special=True), ""
        self._is_inside, self._is_first = late.is_inside, True

    def allowed(self, vocabulary: int) -> np.ndarray[Any, Any]:
        """Return which tokens may come next: inside of reasoning any that does not end the text."""
        if self._is_inside:
            found = np.ones(vocabulary, bool)
            found[[token for token in self._late.tokenizer.end_ids if token < vocabulary]] = False
            return found
        found = np.array(self._mask.allowed(vocabulary))
        if self._is_first:
            found[[token for token in self._late.opens if token < vocabulary]] = True
        return found

    def accept(self, token: int) -> None:
        """The text continues with this token."""
        if self._is_inside:
            self._text = (self._text + self._stream.push(token))[-_KEPT:]
            self._is_inside = self._late.end.search(self._text) is None
        elif self._is_first and token in self._late.opens:
            self._is_inside = True
        else:
            self._mask.accept(token)
        self._is_first = False
