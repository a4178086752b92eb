"""Several models in one server: loaded when asked for, dropped for others and when nobody uses them."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kernmill.ir import FormatError, OutOfMemoryError
from kernmill.llm.talk import LLM
from kernmill.serve.limits import ServerOptions

from .conftest import Running, loaded, running

ASK = {"prompt": "Once", "max_tokens": 2, "temperature": 0}


def states(server: Running) -> dict[str, str]:
    return {one["id"]: one["status"] for one in server.ask("/v1/models").json["data"]}


def test_models_come_and_go(stories: str) -> None:
    paths = dict.fromkeys(("a", "b", "c"), stories)
    with running(paths, ServerOptions(slots=1, models_max=2), loaded) as server:
        assert states(server) == {"a": "loaded", "b": "unloaded", "c": "unloaded"}
        for name in ("b", "a", "c"):
            assert server.ask("/v1/completions", {**ASK, "model": name}).json["model"] == name
        assert states(server) == {"a": "loaded", "b": "unloaded", "c": "loaded"}
        unknown = server.ask("/v1/completions", {**ASK, "model": "d"})
        assert (unknown.status, unknown.error["code"], unknown.error["param"]) == (404, "model_not_found", "model")
        assert server.ask("/v1/completions", {**ASK, "model": "b.gguf"}).json["model"] == "b"
        assert 'kernmill_model_loaded{model="b"} 1' in server.ask("/metrics").body.decode()


def test_memory_is_limited_by_the_files(stories: str) -> None:
    size = Path(stories).stat().st_size
    options = ServerOptions(slots=1, models_max=9, models_bytes=size * 3 // 2)
    with running({"a": stories, "b": stories}, options, loaded) as server:
        server.ask("/v1/completions", {**ASK, "model": "b"})
        assert states(server) == {"a": "unloaded", "b": "loaded"}


def test_an_idle_model_is_dropped_and_comes_back(stories: str) -> None:
    with running({"a": stories}, ServerOptions(slots=1, idle_s=0.2), loaded) as server:
        while states(server) != {"a": "unloaded"}:
            time.sleep(0.02)
        assert server.ask("/health").status == 200
        assert server.ask("/v1/completions", ASK).status == 200
        assert states(server) == {"a": "loaded"}


def test_a_server_answers_while_its_model_loads(stories: str) -> None:
    go = threading.Event()

    def slow(path: str, options: ServerOptions) -> LLM:
        go.wait(60)
        return loaded(path, options)

    with running({"a": stories}, ServerOptions(slots=1), slow, waits=False) as server:
        health = server.ask("/health")
        assert (health.status, health.error["code"]) == (503, "loading")
        refused = server.ask("/v1/completions", ASK)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert states(server) == {"a": "loading"}
        go.set()
        while server.ask("/health").status == 503:
            time.sleep(0.01)
        assert server.ask("/v1/completions", ASK).status == 200


@pytest.mark.parametrize(
    "error",
    [FormatError("/secret/path: it is damaged."), OutOfMemoryError("/secret/path: full"), ValueError("/secret")],
)
def test_a_model_that_cannot_be_loaded(stories: str, error: Exception) -> None:
    def fails(path: str, options: ServerOptions) -> LLM:
        raise error

    with running({"a": stories}, ServerOptions(), fails, waits=False) as server:
        refused = server.ask("/v1/completions", ASK)
        assert refused.status == 503
        assert "secret" not in refused.body.decode()
        assert server.ask("/health").status == 503
        assert states(server) == {"a": "failed"}


def test_a_model_whose_step_failed_is_loaded_again(stories: str) -> None:
    """Named regression: after a failed step /health was 200, and every request got status 500."""
    loads: list[LLM] = []

    def breaks(path: str, options: ServerOptions) -> LLM:
        loads.append(loaded(path, options))
        if len(loads) == 1:
            for name in ("read", "next_tokens"):
                setattr(loads[0].engine._steps, name, fails)
        return loads[-1]

    def fails(*_: object) -> Any:
        raise MemoryError("the device is gone")

    with running({"a": stories}, ServerOptions(slots=1), breaks) as server:
        assert server.ask("/v1/completions", ASK).status == 500
        assert server.ask("/health").error["code"] == "failed"
        assert states(server) == {"a": "failed"}
        assert server.ask("/v1/completions", ASK).status == 200
        assert (server.ask("/health").status, states(server), len(loads)) == (200, {"a": "loaded"}, 2)
