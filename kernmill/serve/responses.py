"""/v1/responses: requests as messages, and answers as items; nothing is stored on the server."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..llm.talk import Reply, ReplyPart, ToolCall
from .errors import invalid, unsupported
from .requests import ResponsesRequest, check_tools
from .shapes import event, reason_of

__all__ = ["ResponsesShape", "chat_tools", "messages_of", "response_format_of"]


def messages_of(body: ResponsesRequest) -> list[dict[str, Any]]:
    """Return the messages of a request.

    Raises:
        RequestError: an item of an unknown type.
    """
    found: list[dict[str, Any]] = []
    if body.instructions:
        found.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*found, {"role": "user", "content": body.input}]
    for index, item in enumerate(body.input):
        kind = item.get("type", "message")
        if kind == "message":
            found.append({"role": item.get("role"), "content": item.get("content")})
        elif kind == "function_call":
            call = {"id": item.get("call_id", ""), "type": "function",
                    "function": {"name": item.get("name"), "arguments": item.get("arguments", "{}")}}  # fmt: skip
            if found and found[-1].get("tool_calls"):
                found[-1]["tool_calls"].append(call)
            else:
                found.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif kind == "function_call_output":
            found.append({"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id", "")})
        elif kind != "reasoning":
            raise unsupported(f"input[{index}].type", f"{str(kind)[:40]} is not supported.")
    if not found:
        raise invalid("input", "must not be empty.")
    return found


def chat_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """Return tools in the form of chat completions."""
    found: list[dict[str, Any]] = []
    for index, tool in enumerate(tools or ()):
        if tool.get("type") != "function":
            raise unsupported(f"tools[{index}].type", "must be function.")
        names = ("name", "description", "parameters", "strict")
        function = {name: tool[name] for name in names if tool.get(name) is not None}
        found.append({"type": "function", "function": function})
    check_tools(found)
    return found


def response_format_of(body: ResponsesRequest) -> dict[str, Any] | None:
    """Return text.format in the form of chat completions."""
    form = (body.text or {}).get("format")
    if form is None:
        return None
    if not isinstance(form, dict):
        raise invalid("text.format", "must be an object.")
    if form.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": {name: form[name] for name in form if name != "type"}}
    return form


class ResponsesShape:
    """The answer of /v1/responses, whole or as typed events."""

    def __init__(self, model: str, body: ResponsesRequest) -> None:
        self._head = {
            "id": f"resp_{secrets.token_hex(12)}", "object": "response", "created_at": int(time.time()), "model": model,
            "instructions": body.instructions, "tools": body.tools or [], "tool_choice": body.tool_choice or "auto",
            "parallel_tool_calls": True, "temperature": body.temperature, "top_p": body.top_p, "metadata": {},
            "max_output_tokens": body.max_output_tokens, "error": None, "previous_response_id": None,
        }  # fmt: skip
        self._number = -1
        self._done: list[dict[str, Any]] = []  # items
        self._open: dict[str, Any] | None = None
        self._call: dict[str, Any] = {}  # the item of the call that is being written
        self._text = ""

    # --- events
    def _event(self, kind: str, **values: Any) -> bytes:
        self._number += 1
        return event({"type": kind, "sequence_number": self._number, **values}, kind)

    def begin(self, index: int) -> bytes:
        """The first events."""
        response = {**self._head, "status": "in_progress", "output": [], "incomplete_details": None, "usage": None}
        kinds = ("response.created", "response.in_progress")
        return b"".join(self._event(kind, response=response) for kind in kinds)

    def part(self, index: int, part: ReplyPart, logprobs: Sequence[Any]) -> bytes:
        """New text, or a call."""
        if part.delta is not None:
            return self._call_events(part.delta, part.call)
        kind = "reasoning" if part.reasoning else "message"
        text = part.reasoning or part.content
        if not text:
            return b""
        made = b""
        if self._open is None or self._open["type"] != kind:
            made = self._close_item() + self._add(kind)
        self._text += text
        name = "response.reasoning_text.delta" if kind == "reasoning" else "response.output_text.delta"
        more: dict[str, Any] = {} if kind == "reasoning" else {"logprobs": []}
        return made + self._event(name, **self._item_fields(), delta=text, **more)

    def _item_fields(self) -> dict[str, Any]:
        assert self._open is not None
        return {"item_id": self._open["id"], "output_index": len(self._done), "content_index": 0}

    def _add(self, kind: str) -> bytes:
        self._text = ""
        self._open = _item(kind, "", "in_progress")
        item = {**self._open, "content": []}
        made = self._event("response.output_item.added", output_index=len(self._done), item=item)
        return made + self._event("response.content_part.added", **self._item_fields(), part=self._open["content"][0])

    def _close_item(self) -> bytes:
        if self._open is None:
            return b""
        kind, where = self._open["type"], self._item_fields()
        item = {**_item(kind, self._text, "completed"), "id": self._open["id"]}
        name = "response.reasoning_text.done" if kind == "reasoning" else "response.output_text.done"
        more: dict[str, Any] = {} if kind == "reasoning" else {"logprobs": []}
        made = self._event(name, **where, text=self._text, **more)
        made += self._event("response.content_part.done", **where, part=item["content"][0])
        made += self._event("response.output_item.done", output_index=len(self._done), item=item)
        self._done.append(item)
        self._open = None
        return made

    def _call_events(self, delta: ToolCall, call: ToolCall | None) -> bytes:
        """More of a call; `call`: it is the end."""
        made = b""
        if delta.name:
            made = self._close_item()
            self._call = _call_item(ToolCall(delta.id, delta.name, ""), "in_progress")
            made += self._event("response.output_item.added", output_index=len(self._done), item=self._call)
        where = {"item_id": self._call["id"], "output_index": len(self._done)}
        if delta.arguments:
            made += self._event("response.function_call_arguments.delta", **where, delta=delta.arguments)
        if call is None:
            return made
        item = {**_call_item(call), "id": self._call["id"]}
        kind = "response.function_call_arguments.done"
        made += self._event(kind, **where, arguments=call.arguments, name=call.name)
        made += self._event("response.output_item.done", output_index=len(self._done), item=item)
        self._done.append(item)
        return made

    def end(self, index: int, reply: Reply, extra: dict[str, Any]) -> bytes:
        """The last item."""
        return self._close_item()

    def finish(self, replies: Sequence[Reply]) -> bytes:
        """The whole response."""
        response = self._response(replies[0], self._done)
        return self._event(f"response.{response['status']}", response=response)

    # --- the body
    def whole(self, replies: Sequence[Reply], extra: dict[str, Any]) -> dict[str, Any]:
        """The body without streaming."""
        reply = replies[0]
        items = [_item("reasoning", reply.reasoning, "completed")] if reply.reasoning else []
        if reply.text.strip() or not reply.tool_calls:
            items.append(_item("message", reply.text, "completed"))
        items += [_call_item(call) for call in reply.tool_calls]
        return self._response(reply, items)

    def _response(self, reply: Reply, items: Sequence[dict[str, Any]]) -> dict[str, Any]:
        is_cut = reason_of(reply) == "length"
        usage = reply.usage
        return {
            **self._head, "status": "incomplete" if is_cut else "completed", "output": list(items),
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "usage": {
                "input_tokens": usage.prompt_tokens, "input_tokens_details": {"cached_tokens": usage.cached_tokens},
                "output_tokens": usage.completion_tokens, "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            },
        }  # fmt: skip


def _item(kind: str, text: str, status: str) -> dict[str, Any]:
    if kind == "reasoning":
        content: dict[str, Any] = {"type": "reasoning_text", "text": text}
        return {"id": f"rs_{secrets.token_hex(8)}", "type": kind, "summary": [], "content": [content], "status": status}
    content = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "id": f"msg_{secrets.token_hex(8)}",
        "type": kind,
        "role": "assistant",
        "content": [content],
        "status": status,
    }


def _call_item(call: ToolCall, status: str = "completed") -> dict[str, Any]:
    return {
        "id": f"fc_{secrets.token_hex(8)}", "type": "function_call", "call_id": call.id, "name": call.name,
        "arguments": call.arguments, "status": status,
    }  # fmt: skip
