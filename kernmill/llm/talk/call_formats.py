"""Formats of tool calls: a row for each family of models, with its markers and a function that reads a call.

A reader gets the whole text of a call with its markers. It returns no calls for a text that is not one.
"""

from __future__ import annotations

import ast
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["FORMATS", "CallFormat", "ToolCall", "parameters_of"]

Tools = Sequence[Mapping[str, Any]]
MAX_CALL_CHARACTERS = 1 << 20


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool: its id, its name, and its arguments as JSON text."""

    id: str
    name: str
    arguments: str

    @classmethod
    def of(cls, name: str, arguments: Any, id: str = "") -> ToolCall:
        """Return a call; `arguments` are JSON text or values."""
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return cls(id or secrets.token_hex(5)[:9], name, text)


@dataclass(frozen=True)
class CallFormat:
    """How a family of models writes calls.

    signs    strings of a chat template that show the format
    opens    markers before calls
    close    the marker after them. None: the end of the reply
    first    characters that open a call without a marker, at the start of a reply.
    reader   reads the text of calls
    around   the JSON of a call's arguments; NAME is the tool. None: they are not JSON
    head     what a call of tool `name` begins with, up to arguments that are JSON; None: calls are read at their end
    """

    name: str
    signs: tuple[str, ...]
    opens: tuple[str, ...]
    close: str | None
    reader: Callable[[str, Tools], list[ToolCall]]
    first: str = ""
    around: tuple[str, str] | None = None
    head: re.Pattern[str] | None = None

    @property
    def markers(self) -> tuple[str, ...]:
        """Strings that may be control tokens."""
        return (*self.opens, *(() if self.close is None else (self.close,)), *_INNER.get(self.name, ()))

    def read(self, text: str, tools: Tools) -> list[ToolCall]:
        """Return the calls of a text; none if it is not a call of this format."""
        if len(text) > MAX_CALL_CHARACTERS:
            return []
        try:
            return self.reader(text, tools)
        except (ValueError, KeyError, TypeError, IndexError, SyntaxError, RecursionError, MemoryError):
            return []


def parameters_of(name: str, tools: Tools) -> Mapping[str, Any]:
    """Return the JSON schema of the parameters of a tool."""
    for tool in tools:
        function = tool.get("function", {})
        if function.get("name") == name:
            found: Mapping[str, Any] = function.get("parameters") or {}
            return found
    return {}


def _call_from(value: Any) -> ToolCall:
    """A call from {"name": .., "arguments" or "parameters": ..}."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError("not a call")
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        json.loads(arguments)
    elif not isinstance(arguments, dict):
        raise ValueError("arguments are not an object")
    given = value.get("id")
    return ToolCall.of(value["name"], arguments, given if isinstance(given, str) else "")


def _inside(text: str, begin: str, end: str) -> str:
    return text.strip().removeprefix(begin).removesuffix(end).strip()


def _blocks(text: str, tools: Tools) -> list[ToolCall]:
    """Hermes and Qwen: JSON. Qwen3-Coder: tags. GLM: a name and pairs of keys and values."""
    body = _inside(text, "<tool_call>", "</tool_call>")
    if body.startswith("<function="):
        return _tagged(body, tools, _FUNCTION, _PARAMETER)
    if "<arg_key>" in body:
        name = body.partition("<arg_key>")[0].strip()
        pairs = re.findall(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", body, re.DOTALL)
        return [ToolCall.of(name, _argument_values(pairs, name, tools))]
    if body.startswith("{"):
        return [_call_from(json.loads(body))]
    return [ToolCall.of(body, {})] if re.fullmatch(r"[\w.-]+", body) else []


_FUNCTION = re.compile(r"<function=([^>\s]+)>(.*?)(?:</function>|$)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_INVOKE = re.compile(r"<invoke name=\"?([^>\"]+)\"?>(.*?)(?:</invoke>|$)", re.DOTALL)
_NAMED_PARAMETER = re.compile(r"<parameter name=\"?([^>\"]+)\"?>\n?(.*?)\n?</parameter>", re.DOTALL)


def _tagged(text: str, tools: Tools, call: re.Pattern[str], parameter: re.Pattern[str]) -> list[ToolCall]:
    return [
        ToolCall.of(name, _argument_values(parameter.findall(body), name, tools)) for name, body in call.findall(text)
    ]  # fmt: skip


def _argument_values(pairs: Sequence[tuple[str, str]], name: str, tools: Tools) -> dict[str, Any]:
    """Arguments from raw text: strings where the schema says so, else JSON if it is JSON."""
    properties = parameters_of(name, tools).get("properties", {})
    found: dict[str, Any] = {}
    for key, raw in pairs:
        kind = properties.get(key, {}).get("type") if isinstance(properties.get(key), dict) else None
        if kind == "string":
            found[key] = raw
            continue
        try:
            found[key] = json.loads(raw)
        except ValueError:
            found[key] = {"true": True, "false": False, "none": None}.get(raw.strip().lower(), raw)
    return found


def _minimax(text: str, tools: Tools) -> list[ToolCall]:
    return _tagged(text, tools, _INVOKE, _NAMED_PARAMETER)


def _mistral(text: str, tools: Tools) -> list[ToolCall]:
    """Up to version 7 a JSON list, from version 11 on a name and its arguments for each call."""
    found: list[ToolCall] = []
    for part in text.split("[TOOL_CALLS]")[1:]:
        body = part.strip()
        if body.startswith("["):
            found += [_call_from(each) for each in json.loads(body)]
        elif body.startswith("{"):
            found.append(_call_from(json.loads(body)))
        else:
            head, _, arguments = body.partition("[ARGS]")
            if not arguments:
                head, _, rest = body.partition("{")
                arguments = "{" + rest
            json.loads(arguments)
            name, _, given = head.partition("[CALL_ID]")
            found.append(ToolCall.of(name.strip(), arguments, given.strip()))
    return found


def _deepseek(text: str, tools: Tools) -> list[ToolCall]:
    """V3 and R1: a type, a name and a fenced JSON block. V3.1: a name and JSON."""
    found: list[ToolCall] = []
    for body in re.findall(
        "<\uff5ctool\u2581call\u2581begin\uff5c>(.*?)<\uff5ctool\u2581call\u2581end\uff5c>", text, re.DOTALL
    ):
        head, _, rest = body.partition("<\uff5ctool\u2581sep\uff5c>")
        if "```" in rest:
            name, _, rest = rest.partition("\n")
            arguments = rest.strip().removeprefix("```json").removesuffix("```").strip()
        else:
            name, arguments = head, rest.strip()
        json.loads(arguments)
        found.append(ToolCall.of(name.strip(), arguments))
    return found


def _kimi(text: str, tools: Tools) -> list[ToolCall]:
    found: list[ToolCall] = []
    pattern = r"<\|tool_call_begin\|>\s*(.*?)\s*<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>"
    for head, arguments in re.findall(pattern, text, re.DOTALL):
        json.loads(arguments)
        name = head.removeprefix("functions.").rpartition(":")[0] or head
        found.append(ToolCall.of(name, arguments.strip(), head))
    return found


def _gemma(text: str, tools: Tools) -> list[ToolCall]:
    """call:NAME{key:value}, strings between <|"|>, keys without quotes."""
    body = _inside(text, "<|tool_call>", "<tool_call|>")
    match = re.fullmatch(r"call:([\w.-]+)(\{.*\})", body, re.DOTALL)
    if match is None:
        return []
    texts = re.split(re.escape('<|"|>'), match[2])
    for number, part in enumerate(texts):
        if number % 2:
            texts[number] = json.dumps(part)
        else:
            texts[number] = re.sub(r"([{,]\s*)([\w.-]+)(\s*:)", r'\1"\2"\3', part)
    return [ToolCall.of(match[1], json.loads("".join(texts)))]


def _whole_json(text: str, tools: Tools) -> list[ToolCall]:
    """Llama 3: one object, or several with semicolons between them."""
    body = text.strip().removeprefix("<|python_tag|>").strip()
    decoder, found = json.JSONDecoder(), list[ToolCall]()
    while body:
        value, end = decoder.raw_decode(body)
        found.append(_call_from(value))
        body = body[end:].lstrip("; \n")
    known = {tool.get("function", {}).get("name") for tool in tools}
    return found if all(call.name in known for call in found) else []


def _python_calls(text: str, tools: Tools) -> list[ToolCall]:
    """Calls in Python's form, with literal arguments."""
    body = text.strip().removeprefix("<|python_start|>").removesuffix("<|python_end|>").strip()
    tree = ast.parse(body, mode="eval").body
    found: list[ToolCall] = []
    for call in tree.elts if isinstance(tree, ast.List) else ():
        if not isinstance(call, ast.Call) or call.args or not isinstance(call.func, (ast.Name, ast.Attribute)):
            return []
        values = {one.arg: ast.literal_eval(one.value) for one in call.keywords if one.arg is not None}
        found.append(ToolCall.of(ast.unparse(call.func), values))
    return found


_DEEPSEEK = ("<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581calls\u2581end\uff5c>")
_INNER: dict[str, tuple[str, ...]] = {
    "deepseek": (
        "<\uff5ctool\u2581call\u2581begin\uff5c>",
        "<\uff5ctool\u2581call\u2581end\uff5c>",
        "<\uff5ctool\u2581sep\uff5c>",
    ),
    "kimi": ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    "mistral": ("[ARGS]", "[CALL_ID]"),
    "gemma": ('<|"|>',),
}
_NAMED = r'\{\s*"name"\s*:\s*"(?P<name>[^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
_HEADS = {  # later calls of one text may have the end of the one before at their beginning
    "kimi": r"(?:\s|<\|tool_calls_section_begin\|>|<\|tool_call_end\|>)*<\|tool_call_begin\|>\s*"
            r"(?P<id>(?:functions\.)?(?P<name>[\w.-]+)(?::\d+)?)\s*<\|tool_call_argument_begin\|>\s*(?=\{)",
    "deepseek": rf"(?:\s|```|{_DEEPSEEK[0]}|{_INNER['deepseek'][1]})*{_INNER['deepseek'][0]}"
                rf"(?:function{_INNER['deepseek'][2]})?(?P<name>[\w.:-]+)(?:{_INNER['deepseek'][2]}|\s*```json)\s*(?=\{{)",
    "blocks": r"\s*<tool_call>\s*" + _NAMED,
    "mistral": r"\s*\[TOOL_CALLS\]\s*(?P<name>[\w.-]+)(?:\[CALL_ID\](?P<id>\w+))?(?:\[ARGS\])?\s*(?=\{)",
    "llama": r"[\s;}]*(?:<\|python_tag\|>\s*)?" + _NAMED,
}  # fmt: skip
_HEAD = {name: re.compile(pattern) for name, pattern in _HEADS.items()}
FORMATS = (  # the first row with a sign in the template
    CallFormat("minimax", ("<minimax:tool_call>",), ("<minimax:tool_call>",), "</minimax:tool_call>", _minimax),
    CallFormat("kimi", ("<|tool_calls_section_begin|>",), ("<|tool_calls_section_begin|>",),
               "<|tool_calls_section_end|>", _kimi,
               around=("<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>",
                       "<|tool_call_end|><|tool_calls_section_end|>"), head=_HEAD["kimi"]),
    CallFormat("deepseek", _DEEPSEEK[:1], _DEEPSEEK[:1], _DEEPSEEK[1], _deepseek,
               around=(f"{_DEEPSEEK[0]}{_INNER['deepseek'][0]}NAME{_INNER['deepseek'][2]}",
                       f"{_INNER['deepseek'][1]}{_DEEPSEEK[1]}"), head=_HEAD["deepseek"]),
    CallFormat("gemma", ("<|tool_call>",), ("<|tool_call>",), "<tool_call|>", _gemma),
    CallFormat("blocks", ("<tool_call>",), ("<tool_call>",), "</tool_call>", _blocks,
               around=('<tool_call>\n{"name": "NAME", "arguments": ', "}\n</tool_call>"), head=_HEAD["blocks"]),
    CallFormat("mistral", ("[TOOL_CALLS]",), ("[TOOL_CALLS]",), None, _mistral,
               around=('[TOOL_CALLS][{"name": "NAME", "arguments": ', "}]"), head=_HEAD["mistral"]),
    CallFormat("python", ("[func_name1(params_name1", "<|python_start|>"), ("<|python_start|>",), None, _python_calls,
               first="["),
    CallFormat("llama", ("<|python_tag|>", '"parameters": dictionary', "Environment: ipython"), ("<|python_tag|>",),
               None, _whole_json, first="{", around=('{"name": "NAME", "parameters": ', "}"), head=_HEAD["llama"]),
)  # fmt: skip
