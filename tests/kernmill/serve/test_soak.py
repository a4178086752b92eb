"""Many clients for a long time, some of whom leave: each answer is that of the request alone, and nothing leaks."""

from __future__ import annotations

import gc
import http.client
import json
import random
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kernmill.llm import Model
from kernmill.serve.limits import ServerOptions

from .conftest import Running, loaded, running

STARTS = ("Once upon a time", "The big dog", "Lily", "A cat sat", "One day, a boy named Tim went to the park.")
NEAR = 1e-3  # log probabilities of two tokens that may change places, as sums of floats have another order


class Alone:
    """The texts of the model, request by request."""

    def __init__(self, path: str) -> None:
        self._model = Model.from_gguf(path, capacity=256)
        self._lock = threading.Lock()
        self._known: dict[tuple[str, int], str] = {}

    def text(self, prompt: str, count: int) -> str:
        with self._lock:
            if (prompt, count) not in self._known:
                self._known[prompt, count] = "".join(self._model.complete(prompt, max_tokens=count))
            return self._known[prompt, count]

    def is_as_good(self, prompt: str, text: str, count: int) -> bool:
        """True if each token of a text is the best one after those before, or nearly."""
        tokenizer = self._model.tokenizer
        assert tokenizer is not None
        start = tokenizer.encode(prompt)
        whole = tokenizer.encode(prompt + text)
        if whole[: len(start)] != start:
            return False
        with self._lock:
            logits = self._model.logits(whole[:-1]).numpy()[len(start) - 1 :]
        logs = logits - logits.max(-1, keepdims=True)
        return len(whole) - len(start) <= count and all(
            row[token] > -NEAR for row, token in zip(logs, whole[len(start) :], strict=True)
        )


def request_of(chance: random.Random) -> tuple[str, int]:
    prompt = " ".join(chance.choice(STARTS) for _ in range(chance.choice((1, 1, 2, 6))))
    return prompt, chance.choice((1, 5, 12, 30))


def client(server: Running, alone: Alone, chance: random.Random, count: int, found: Counter[str]) -> None:
    for _ in range(count):
        prompt, tokens = request_of(chance)
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": tokens, "temperature": 0}
        kind = chance.choices(("whole", "stream", "slow", "leave", "leave at once", "broken"), (5, 4, 1, 2, 1, 1))[0]
        try:
            found[one_request(server, alone, body, kind, chance)] += 1
        except Exception as error:
            found[f"{kind}: {error!r}"[:200]] += 1


def one_request(server: Running, alone: Alone, body: dict[str, Any], kind: str, chance: random.Random) -> str:
    """Send a request, and return how it went."""
    if kind == "broken":
        answered = server.ask("/v1/completions", json.dumps(body).encode()[:-2])
        return "broken" if answered.status == 400 else f"broken: {answered.status}"
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    try:
        raw = json.dumps({**body, "stream": kind != "whole"})
        connection.request("POST", "/v1/completions", raw, {"Content-Type": "application/json"})
        if kind == "leave at once":
            return kind
        response = connection.getresponse()
        if response.status == 429:
            time.sleep(0.05)
            return "busy"
        if kind == "leave":
            response.read(chance.randrange(1, 600))
            with suppress(OSError):
                assert connection.sock is not None
                connection.sock.shutdown(socket.SHUT_RDWR)
            return kind
        raw_answer = slowly_read(response) if kind == "slow" else response.read()
    finally:
        connection.close()
    if kind != "whole":
        lines = [line[6:] for line in raw_answer.decode().split("\n\n") if line.startswith("data: ")]
        text = "".join(json.loads(line)["choices"][0]["text"] for line in lines[:-1])
    else:
        text = json.loads(raw_answer)["choices"][0]["text"]
    prompt, tokens = body["prompt"], body["max_tokens"]
    if text == alone.text(prompt, tokens):
        return "same"
    return "nearly the same" if alone.is_as_good(prompt, text, tokens) else f"wrong: {prompt!r} {text!r}"


def slowly_read(response: http.client.HTTPResponse) -> bytes:
    """Read an answer in small pieces, with pauses."""
    parts: list[bytes] = []
    while part := response.read(512):
        parts.append(part)
        time.sleep(0.02)
    return b"".join(parts)


def memory_bytes() -> int:
    """The memory of this process that is in use."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    return 0


def soak(path: str, requests: int, clients: int) -> None:
    alone, found = Alone(path), Counter[str]()
    with running({"stories": path}, ServerOptions(slots=4, queue=clients), loaded) as server:

        def some(count: int) -> None:
            threads = [
                threading.Thread(target=client, args=(server, alone, random.Random(n), count // clients, found))
                for n in range(clients)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        some(max(clients, requests // 10))
        gc.collect()
        before = memory_bytes()
        some(requests)
        server.wait_until_idle()
        gc.collect()
        grown = memory_bytes() - before
    usual = {"same", "nearly the same", "busy", "broken", "leave", "leave at once"}
    assert {kind: count for kind, count in found.items() if kind not in usual} == {}
    assert found["same"] > 10 * found["nearly the same"]
    assert found["leave"]
    assert grown < 64 << 20, f"memory grew by {grown >> 20} MiB"
    print(dict(found), f"grown by {grown / 2**20:.1f} MiB")


def test_some_clients_for_a_while(stories: str) -> None:
    soak(stories, 40, 8)


@pytest.mark.slow
def test_many_clients_for_long(stories: str) -> None:
    soak(stories, 10_000, 64)


def test_a_text_that_is_not_the_models_is_found(stories: str) -> None:
    alone = Alone(stories)
    text = alone.text("Once upon a time", 12)
    assert alone.is_as_good("Once upon a time", text, 12)
    assert not alone.is_as_good("Once upon a time", text[:-1] + "q", 12)
