"""A running server in a thread of the test process, with the model stories260K, and requests to it."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from kernmill.llm import Model
from kernmill.llm.talk import LLM
from kernmill.serve.app import make_app
from kernmill.serve.limits import ServerOptions

STORIES = "stories260Ktok512.gguf"


@pytest.fixture(autouse=True)
def on_device() -> str:
    """Instead of the front's fixture: the server computes in threads of its own."""
    return "the default device"


@dataclass
class Answered:
    """A response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        """The events of a stream, without [DONE]."""
        lines = [line[6:] for line in self.body.decode().split("\n\n") if line.startswith("data: ")]
        assert lines[-1] == "[DONE]", lines
        return [json.loads(line) for line in lines[:-1]]


@dataclass
class Running:
    """A server, by its port."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, path: str, body: Any = None, method: str = "", **headers: str) -> Answered:
        """Send a request; a body is JSON unless it is bytes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = {"Content-Type": "application/json"} if body is not None else {}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        try:
            connection.request(method or ("GET" if body is None else "POST"), path, raw, sent)
            response = connection.getresponse()
            return Answered(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def wait_until_idle(self) -> None:
        """Wait until no slot has a request."""
        limit = time.monotonic() + 60
        while any(slot["is_processing"] for slot in self.ask("/slots").json):
            assert time.monotonic() < limit, "a slot is stuck"
            time.sleep(0.01)


@contextmanager
def running(
    paths: Mapping[str, str], options: ServerOptions, load: Callable[[str, ServerOptions], LLM], *, waits: bool = True
) -> Iterator[Running]:
    """A server while the block runs."""
    config = uvicorn.Config(
        make_app(paths, options, load), port=0, log_level="error", server_header=False, ws="none", lifespan="on"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.005)
    found = Running(server.servers[0].sockets[0].getsockname()[1])
    try:
        while waits and found.ask("/health").status == 503:
            time.sleep(0.01)
        yield found
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def loaded(path: str, options: ServerOptions) -> LLM:
    """The model of a file, with short texts."""
    return LLM(
        Model.from_gguf(path, capacity=options.context or 256), slots=options.slots, queue=options.queue, chunk=32,
        template=options.template, sampling=options.sampling, draft=options.draft,
    )  # fmt: skip


@pytest.fixture(scope="session")
def stories(shared_data: Callable[[str], Path]) -> str:
    return str(shared_data("stories260K") / STORIES)


@pytest.fixture(scope="module")
def server(stories: str) -> Generator[Running]:
    """A server with one model, two slots and a short queue."""
    with running({"stories": stories}, ServerOptions(slots=2, queue=8), loaded) as found:
        yield found
