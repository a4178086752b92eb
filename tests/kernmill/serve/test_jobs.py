"""Clients that go away, that are too many, that do not read, and answers that take too long."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from kernmill.llm.engine import Usage
from kernmill.serve.jobs import Job, Stream
from kernmill.serve.limits import ServerOptions
from kernmill.serve.metrics import Metrics

from .conftest import Answered, Running, loaded, running

HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)
LONG = {"prompt": "Once upon a time", "max_tokens": 250, "temperature": 0, "logit_bias": {"1": -100, "2": -100}}


def until(true: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def is_idle(server: Running) -> bool:
    return not any(slot["is_processing"] for slot in server.ask("/slots").json)


def opened(server: Running, body: Any) -> socket.socket:
    """A request whose answer is not read."""
    raw = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    connection.sendall(HEAD % len(raw) + raw)
    return connection


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_client_that_goes_away_frees_its_slot(server: Running, stream: bool, how: str) -> None:
    """All slots and the queue are taken by clients that leave; the next one is answered."""
    connections = [opened(server, {**LONG, "stream": stream, "max_tokens": -1}) for _ in range(4)]
    until(lambda: not is_idle(server), "a slot is taken")
    for connection in connections:
        if how == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    until(lambda: is_idle(server), "the slots are free")
    assert server.ask("/v1/completions", {**LONG, "max_tokens": 2}).status == 200


def test_a_full_queue_is_told(stories: str) -> None:
    with running({"stories": stories}, ServerOptions(slots=1, queue=2), loaded) as server:
        connections = [opened(server, {**LONG, "stream": True})]
        until(lambda: not is_idle(server), "a slot is taken")
        answers: list[Answered] = []
        threads = [
            threading.Thread(target=lambda: answers.append(server.ask("/v1/completions", LONG))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for connection in connections:
            connection.close()
        refused = [answer for answer in answers if answer.status == 429]
        assert refused
        assert {answer.status for answer in answers} <= {200, 429}
        assert refused[0].error["code"] == "queue_full"
        assert refused[0].headers["retry-after"] == "1"
        texts = {answer.json["choices"][0]["text"] for answer in answers if answer.status == 200}
        assert len(texts) == 1


def test_several_answers_at_once_are_those_of_one_alone(server: Running) -> None:
    prompts = ["Once upon a time", "The dog", "Lily and Tom went to", "One day"]
    alone = [server.ask("/v1/completions", {**LONG, "prompt": text, "max_tokens": 40}).json for text in prompts]
    found: dict[str, str] = {}

    def ask(text: str) -> None:
        events = server.ask("/v1/completions", {**LONG, "prompt": text, "max_tokens": 40, "stream": True}).events
        found[text] = "".join(event["choices"][0]["text"] for event in events)

    threads = [threading.Thread(target=ask, args=(text,)) for text in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[text] for text in prompts] == [one["choices"][0]["text"] for one in alone]


def test_an_answer_ends_at_its_limit_of_time(stories: str) -> None:
    with running({"stories": stories}, ServerOptions(slots=1, timeout_s=0.01), loaded) as server:
        slow = {**LONG, "prompt": ["Once"] * 12, "max_tokens": 250}  # one slot: the last ones wait for seconds
        choices = server.ask("/v1/completions", slow).json["choices"]
        assert {choice["finish_reason"] for choice in choices} == {"length"}
        assert all("text" in choice for choice in choices)


def test_a_client_that_does_not_read_is_cut_off(stories: str) -> None:
    with running({"stories": stories}, ServerOptions(slots=1, stall_s=0.5), loaded) as server:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        connection.connect(("127.0.0.1", server.port))
        raw = json.dumps({**LONG, "logprobs": 20, "stream": True, "prompt": ["Once"] * 16}).encode()
        connection.sendall(HEAD % len(raw) + raw)
        until(lambda: is_idle(server), "the slot is free")
        connection.close()
        assert server.ask("/v1/completions", {**LONG, "max_tokens": 2}).status == 200


def test_a_silent_stream_has_comments(stories: str) -> None:
    with running({"stories": stories}, ServerOptions(slots=1, ping_s=0.01), loaded) as server:
        waits = {**LONG, "prompt": ["Once"] * 4}
        first = opened(server, waits)
        until(lambda: not is_idle(server), "the slot is taken")
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps({**LONG, "stream": True}), headers)
        text = connection.getresponse().read().decode()
        connection.close()
        first.close()
        assert text.startswith(": \n\n")
        assert text.endswith("data: [DONE]\n\n")


def test_parts_wait_in_their_order_while_a_client_does_not_read() -> None:
    sent: list[bytes] = []

    async def main() -> None:
        reads = asyncio.Event()

        async def send(message: Any) -> None:
            if message["body"] == b"2":
                await reads.wait()
            sent.append(message["body"])

        body = Stream(send)
        body.put(b"1")
        assert (sent, body.is_waiting) == ([b"1"], False)  # at once, without a turn of the loop
        for part in (b"2", b"3", b"4"):
            body.put(part)
        assert (sent, body.is_waiting) == ([b"1"], True)
        asyncio.get_running_loop().call_later(0.01, reads.set)
        await body.end(b"5")

    asyncio.run(main())
    assert sent == [b"1", b"2", b"34", b"5"]


def test_speeds_are_those_of_the_engine() -> None:
    """Named regression: two tokens that came together had a speed of thousands; it was not that of predicted_ms."""

    async def timings(made: int, first: float, last: float) -> dict[str, Any]:
        start = time.perf_counter()
        generation = SimpleNamespace(first_s=start + first, last_s=start + last)
        reply: Any = SimpleNamespace(generation=generation, usage=Usage(9, 4, made))
        return Job([reply], ServerOptions(), Metrics(), nullcontext()).timings()

    found = asyncio.run(timings(3, 0.5, 1.5))
    assert (found["cache_n"], found["prompt_n"], found["predicted_n"]) == (4, 5, 3)
    assert found["prompt_per_second"] == pytest.approx(10, rel=0.01)
    assert (found["predicted_ms"], found["predicted_per_token_ms"]) == (1000, 500)
    assert found["predicted_per_second"] == 2
    found = asyncio.run(timings(1, 0.5, 0.5))
    assert (found["predicted_ms"], found["predicted_per_second"]) == (0, 0)  # there is no time between tokens
