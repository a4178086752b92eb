"""Requests by the types of their bodies, and any bytes: none is answered with status 500, and none hangs the server."""

from __future__ import annotations

import types
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernmill.serve import requests
from kernmill.serve.requests import SamplingFields

from .conftest import Running

BODIES = {
    "/v1/chat/completions": requests.ChatRequest, "/v1/completions": requests.CompletionRequest,
    "/v1/responses": requests.ResponsesRequest, "/v1/embeddings": requests.EmbeddingRequest,
    "/v1/rerank": requests.RerankRequest, "/tokenize": requests.TokenizeRequest,
    "/detokenize": requests.DetokenizeRequest, "/apply-template": requests.TemplateRequest,
}  # fmt: skip
NUMBERS = st.one_of(
    st.sampled_from([0, 1, -1, 2, 3, 1 << 31, -(1 << 31), (1 << 63) - 1, 1 << 70, 1e308, -1e308, 0.5, 1e-9]),
    st.floats(-2, 2), st.integers(-5, 600),
)  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["", "a", "</s>", "<|im_start|>", "user", "auto", "required", "text", "json_object", "\0", "é" * 300]
    ),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=8,
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool", "developer", "x"]), "content": TEXTS | JSON},
    optional={"tool_calls": JSON, "reasoning_content": TEXTS, "name": JSON, "tool_call_id": JSON, "type": TEXTS},
)
TOOL = st.fixed_dictionaries(
    {"type": st.just("function"), "function": st.fixed_dictionaries(
        {"name": st.sampled_from(["f", "g.h", "a b", ""])},
        optional={"parameters": st.just({"type": "object"}) | JSON, "description": TEXTS},
    )}
)  # fmt: skip
FORM = st.one_of(
    JSON,
    st.fixed_dictionaries(
        {"type": st.sampled_from(["json_object", "json_schema", "regex", "choice", "grammar", "text", "x"])},
        optional={
            "json_schema": st.fixed_dictionaries({"schema": JSON}) | JSON, "schema": JSON, "regex": TEXTS | JSON,
            "choice": st.lists(TEXTS, max_size=3), "grammar": TEXTS,
        },
    ),
)  # fmt: skip
SPECIAL: dict[str, st.SearchStrategy[Any]] = {
    "messages": st.lists(MESSAGE, min_size=1, max_size=3), "tools": st.lists(TOOL, max_size=2), "response_format": FORM,
    "max_tokens": st.integers(0, 6), "n": st.integers(1, 3), "model": st.none() | TEXTS,
    "input": TEXTS | st.lists(MESSAGE | TEXTS, max_size=3),
    "prompt": TEXTS | st.lists(st.integers(-2, 600), max_size=4),
}  # fmt: skip


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type, in most cases, as JSON has them."""
    if get_origin(kind) is Annotated:
        return values_of(get_args(kind)[0])
    if get_origin(kind) in (Union, types.UnionType):
        return st.one_of(*map(values_of, get_args(kind)))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return fields_of(kind)
    plain = {bool: st.booleans(), int: NUMBERS, float: NUMBERS, str: TEXTS, type(None): st.none()}
    if kind in plain:
        return plain[kind]
    if get_origin(kind) is list:
        return st.lists(values_of(get_args(kind)[0]), max_size=3)
    if get_origin(kind) is dict:
        return st.dictionaries(TEXTS | st.integers(0, 600).map(str), values_of(get_args(kind)[1]), max_size=3)
    return JSON


def fields_of(kind: type[Any], most: int = 5) -> st.SearchStrategy[dict[str, Any]]:
    """A body of a few fields; each has a value of its type or, now and then, any other."""
    hints = get_type_hints(kind, include_extras=True)
    each = {name: SPECIAL[name] if name in SPECIAL else values_of(hint) for name, hint in hints.items()}
    each = {name: st.one_of(values, values, values, JSON) for name, values in each.items()}
    needed = {one.name for one in msgspec.structs.fields(kind) if one.required}
    if issubclass(kind, SamplingFields):
        needed.add("max_tokens")
    names = st.sets(st.sampled_from(sorted(each)), max_size=most).map(lambda chosen: chosen | needed)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: each[name] for name in sorted(chosen)}))


REQUESTS = st.sampled_from(sorted(BODIES)).flatmap(lambda path: st.tuples(st.just(path), fields_of(BODIES[path])))


def check(server: Running, path: str, body: Any, **headers: str) -> None:
    answered = server.ask(path, body, **headers)
    assert answered.status < 500 or answered.status == 503, (path, body, answered.body)
    is_stream = answered.headers.get("content-type", "").startswith("text/event-stream")
    if answered.status >= 400:
        assert set(answered.error) == {"message", "type", "param", "code"}
        assert "Traceback" not in answered.error["message"]
    elif is_stream:
        assert b'"code":500' not in answered.body.replace(b" ", b"")


def fuzz(server: Running, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(REQUESTS)
    def run(request: tuple[str, Any]) -> None:
        check(server, *request)

    run()
    assert server.ask("/v1/completions", {"prompt": "a", "max_tokens": 1}).status == 200
    server.wait_until_idle()


def test_bodies_by_their_types(server: Running) -> None:
    fuzz(server, 40)


@pytest.mark.slow
def test_many_bodies_by_their_types(server: Running) -> None:
    fuzz(server, 5000)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(
    st.sampled_from([*BODIES, "/", "/v1/models", "/props", "/zzz", "/v1/models/%00"]), st.binary(max_size=64),
    st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE"]),
    st.sampled_from(["application/json", "text/plain", "application/json; charset=x"]),
)  # fmt: skip
def test_methods_types_and_bytes(server: Running, path: str, raw: bytes, method: str, kind: str) -> None:
    answered = server.ask(path, raw, method, Content_Type=kind)
    assert answered.status < 500, (path, raw, method, answered.body)
