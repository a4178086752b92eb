"""Answers in OpenAI's form: bodies and server-sent events of chat and of plain completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from ..llm.talk import Reply, ReplyPart
from ..llm.tokenizer import Tokenizer

__all__ = ["ChatShape", "CompletionShape", "LlamaShape", "Shape", "event", "usage_of"]

encode = msgspec.json.encode


def event(value: Any, name: str = "") -> bytes:
    """A server-sent event."""
    head = b"event: " + name.encode() + b"\n" if name else b""
    return head + b"data: " + encode(value) + b"\n\n"


def usage_of(replies: Sequence[Reply]) -> dict[str, Any]:
    """Token counts of a request: the prompt counts once for all its choices."""
    counts = [reply.usage for reply in replies]
    prompts = {id(reply.prompt): count for reply, count in zip(replies, counts, strict=True)}
    prompt = sum(count.prompt_tokens for count in prompts.values())
    cached = sum(count.cached_tokens for count in prompts.values())
    completion = sum(count.completion_tokens for count in counts)
    return {
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }  # fmt: skip


def reason_of(reply: Reply) -> str:
    """Why a reply ended, in OpenAI's words; the server's limit of time is a length."""
    reason = reply.finish_reason or "stop"
    return "length" if reason == "cancelled" else reason


class Shape(Protocol):
    """The form of the answers of one endpoint."""

    def begin(self, index: int) -> bytes:
        """The first event of a choice."""
        ...

    def part(self, index: int, part: ReplyPart, logprobs: Sequence[Any]) -> bytes:
        """New text of a choice."""
        ...

    def end(self, index: int, reply: Reply, extra: dict[str, Any]) -> bytes:
        """The last event of a choice."""
        ...

    def finish(self, replies: Sequence[Reply]) -> bytes:
        """The end of the stream."""
        ...

    def whole(self, replies: Sequence[Reply], extra: dict[str, Any]) -> Any:
        """The body without streaming."""
        ...


class _Chunks:
    """The common part of chat and plain completions."""

    prefix, object, whole_object = "cmpl-", "text_completion", "text_completion"

    def __init__(self, model: str, tokenizer: Tokenizer, *, wants_usage: bool) -> None:
        self._tokenizer, self._wants_usage = tokenizer, wants_usage
        self._head = {"id": self.prefix + secrets.token_hex(12), "object": self.object, "created": int(time.time()),
                      "model": model, "system_fingerprint": "kernmill"}  # fmt: skip
        self._front = b"data: " + encode(self._head)[:-1] + b',"choices":[{"index":'
        self._null_usage = b',"usage":null' if wants_usage else b""
        self._tail = b',"finish_reason":null}]' + self._null_usage + b"}\n\n"

    def _chunk(self, index: int, inner: bytes) -> bytes:
        """An event with one choice, `inner` are its own fields."""
        return b"%b%d,%b%b" % (self._front, index, inner, self._tail)

    def _last_chunk(self, index: int, inner: bytes, reason: str, extra: dict[str, Any]) -> bytes:
        """The last event of a choice."""
        tail = b',"finish_reason":' + encode(reason) + b"}]" + self._null_usage + _extra(extra) + b"}\n\n"
        return b"%b%d,%b%b" % (self._front, index, inner, tail)

    def finish(self, replies: Sequence[Reply]) -> bytes:
        """The token counts where they are wanted, and the end."""
        last = event({**self._head, "choices": [], "usage": usage_of(replies)}) if self._wants_usage else b""
        return last + b"data: [DONE]\n\n"

    def _with_choices(
        self, choices: list[dict[str, Any]], replies: Sequence[Reply], extra: dict[str, Any]
    ) -> dict[str, Any]:
        head = {**self._head, "object": self.whole_object}
        return {**head, "choices": choices, "usage": usage_of(replies), **extra}

    def _token_text(self, token: int) -> tuple[str, list[int]]:
        raw = self._tokenizer.token_bytes(token)
        return raw.decode("utf-8", "replace"), list(raw)


def _extra(values: dict[str, Any]) -> bytes:
    return b"," + encode(values)[1:-1] if values else b""


class ChatShape(_Chunks):
    """/v1/chat/completions."""

    prefix, object, whole_object = "chatcmpl-", "chat.completion.chunk", "chat.completion"

    def begin(self, index: int) -> bytes:
        """The first event: the role."""
        return self._chunk(index, b'"delta":{"role":"assistant","content":""},"logprobs":null')

    def part(self, index: int, part: ReplyPart, logprobs: Sequence[Any]) -> bytes:
        """New text, or more of a call: its name, or of its arguments."""
        shown = b"null" if not logprobs else encode({"content": self._content(logprobs), "refusal": None})
        if part.delta is not None:
            deltas: list[dict[str, Any]] = []
            if part.delta.name:
                deltas.append({"index": part.index, "id": part.delta.id, "type": "function",
                               "function": {"name": part.delta.name, "arguments": ""}})  # fmt: skip
            if part.delta.arguments:
                deltas.append({"index": part.index, "function": {"arguments": part.delta.arguments}})
            return b"".join(
                self._chunk(index, b'"delta":' + encode({"tool_calls": [one]}) + b',"logprobs":null') for one in deltas
            )
        name, text = (b"reasoning_content", part.reasoning) if part.reasoning else (b"content", part.content)
        return self._chunk(index, b'"delta":{"' + name + b'":' + encode(text) + b'},"logprobs":' + shown)

    def end(self, index: int, reply: Reply, extra: dict[str, Any]) -> bytes:
        """The reason of the end."""
        return self._last_chunk(index, b'"delta":{},"logprobs":null', reason_of(reply), extra)

    def whole(self, replies: Sequence[Reply], extra: dict[str, Any]) -> dict[str, Any]:
        """The body without streaming."""
        choices: list[dict[str, Any]] = []
        for index, reply in enumerate(replies):
            message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": None}
            if reply.reasoning:
                message["reasoning_content"] = reply.reasoning
            if reply.tool_calls:
                message["content"] = reply.text.strip() or None
                message["tool_calls"] = [
                    {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                    for call in reply.tool_calls
                ]
            logprobs = {"content": self._content(reply.logprobs), "refusal": None} if reply.logprobs else None
            choices.append(
                {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason_of(reply)}
            )
        return self._with_choices(choices, replies, extra)

    def _content(self, logprobs: Sequence[Any]) -> list[dict[str, Any]]:
        return [
            {
                **self._entry_of(one.token, one.logprob),
                "top_logprobs": [self._entry_of(*each) for each in one.top],
            }
            for one in logprobs
        ]

    def _entry_of(self, token: int, logprob: float) -> dict[str, Any]:
        text, raw = self._token_text(token)
        return {"token": text, "logprob": max(float(logprob), -9999.0), "bytes": raw}


class CompletionShape(_Chunks):
    """/v1/completions. `echoes`: texts before the answers."""

    def __init__(self, model: str, tokenizer: Tokenizer, *, wants_usage: bool, echoes: Sequence[str]) -> None:
        super().__init__(model, tokenizer, wants_usage=wants_usage)
        self._echoes = echoes
        self._offsets = [len(text) for text in echoes]

    def begin(self, index: int) -> bytes:
        """The prompt, if the client wants it back."""
        text = self._echoes[index]
        return self._chunk(index, b'"text":' + encode(text) + b',"logprobs":null') if text else b""

    def part(self, index: int, part: ReplyPart, logprobs: Sequence[Any]) -> bytes:
        """New text."""
        shown = encode(self._lists(index, logprobs)) if logprobs else b"null"
        return self._chunk(index, b'"text":' + encode(part.content) + b',"logprobs":' + shown)

    def end(self, index: int, reply: Reply, extra: dict[str, Any]) -> bytes:
        """The reason of the end."""
        return self._last_chunk(index, b'"text":"","logprobs":null', reason_of(reply), extra)

    def whole(self, replies: Sequence[Reply], extra: dict[str, Any]) -> dict[str, Any]:
        """The body without streaming."""
        choices = [
            {"index": index, "text": self._echoes[index] + reply.text, "finish_reason": reason_of(reply),
             "logprobs": self._lists(index, reply.logprobs) if reply.logprobs else None}
            for index, reply in enumerate(replies)
        ]  # fmt: skip
        return self._with_choices(choices, replies, extra)

    def _lists(self, index: int, logprobs: Sequence[Any]) -> dict[str, Any]:
        names = [self._token_text(one.token)[0] for one in logprobs]
        offsets: list[int] = []
        for name in names:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(name)
        tops = [{self._token_text(token)[0]: float(value) for token, value in one.top} for one in logprobs]
        return {
            "tokens": names, "token_logprobs": [max(float(one.logprob), -9999.0) for one in logprobs],
            "top_logprobs": tops, "text_offset": offsets,
        }  # fmt: skip


class LlamaShape:
    """llama-server's own /completion. `texts`: the prompts."""

    def __init__(self, model: str, texts: Sequence[str]) -> None:
        self._model, self._texts = model, texts

    def begin(self, index: int) -> bytes:
        """Nothing: the first event has text."""
        return b""

    def part(self, index: int, part: ReplyPart, logprobs: Sequence[Any]) -> bytes:
        """New text."""
        return event({"index": index, "content": part.content, "stop": False})

    def end(self, index: int, reply: Reply, extra: dict[str, Any]) -> bytes:
        """The reason of the end, and counts."""
        return event({**self._summary(index, reply), **extra, "content": ""})

    def finish(self, replies: Sequence[Reply]) -> bytes:
        """Nothing: the last event says that it is the last."""
        return b""

    def whole(self, replies: Sequence[Reply], extra: dict[str, Any]) -> Any:
        """The body without streaming: a list of several."""
        found = [{**self._summary(index, reply), **extra} for index, reply in enumerate(replies)]
        return found[0] if len(found) == 1 else found

    def _summary(self, index: int, reply: Reply) -> dict[str, Any]:
        usage, word = reply.usage, reply.generation.stop_string
        is_cut = reason_of(reply) == "length"
        return {
            "index": index, "content": reply.text, "stop": True, "model": self._model, "prompt": self._texts[index],
            "tokens_predicted": usage.completion_tokens, "tokens_evaluated": usage.prompt_tokens,
            "tokens_cached": usage.prompt_tokens + usage.completion_tokens, "truncated": False,
            "stop_type": "limit" if is_cut else "eos" if word is None else "word", "stopping_word": word or "",
        }  # fmt: skip
