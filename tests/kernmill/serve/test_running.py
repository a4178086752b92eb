"""The command `kernmill serve` in a process of its own: what it says, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernmill.commands.cli import main
from kernmill.serve.limits import ServerOptions
from kernmill.serve.running import run

from .conftest import Answered, Running

ROOT = Path(__file__).resolve().parents[3]
BIAS = {"1": -100, "2": -100}


@contextmanager
def command(*words: str) -> Generator[tuple[subprocess.Popen[str], Running]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "kernmill", "serve", *words, "--port", "0"], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.fullmatch(r"kernmill: serving .* at http://127\.0\.0\.1:(\d+)\n", line)
        assert found, line
        server = Running(int(found[1]))
        end = time.monotonic() + 120
        while True:
            try:
                if server.ask("/health").status == 200:
                    break
            except ConnectionError:
                pass
            assert time.monotonic() < end
            time.sleep(0.05)
        yield process, server
    finally:
        process.kill()
        process.communicate()


def test_sigterm_lets_an_answer_end(stories: str) -> None:
    """It ends within --drain; no new connection is taken; the exit status is 0."""
    with command(stories, "-c", "256", "--drain", "60", "-np", "1", "--queue", "20") as (process, server):
        answers: list[Answered] = []
        body = {"prompt": ["Once upon a time"] * 8, "max_tokens": 240, "temperature": 0, "logit_bias": BIAS}
        thread = threading.Thread(target=lambda: answers.append(server.ask("/v1/completions", body)))
        thread.start()
        while not any(slot["is_processing"] for slot in server.ask("/slots").json):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        thread.join(120)
        assert [answer.status for answer in answers] == [200]
        assert {choice["finish_reason"] for choice in answers[0].json["choices"]} == {"length"}
        assert process.wait(60) in (0, -signal.SIGTERM)


def test_options_reach_the_server(stories: str, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("one\ntwo\n")
    (tmp_path / "template").write_text("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    words = ("-a", "tale", "--api-key-file", str(tmp_path / "keys"), "--chat-template-file", str(tmp_path / "template"),
             "--api-prefix", "/llm", "--no-webui", "--no-slots", "--no-metrics", "--temp", "0", "-c", "128",
             "-ngl", "99", "-fa", "on", "-cb")  # fmt: skip
    with command_with_prefix(stories, *words) as server:
        key = {"Authorization": "Bearer two"}
        assert server.ask("/llm/v1/models", **key).json["data"][0]["id"] == "tale"
        assert server.ask("/llm/v1/models").status == 401
        for path in ("/llm/slots", "/llm/metrics", "/llm/", "/v1/models"):
            assert server.ask(path, **key).status == 404
        props = server.ask("/llm/props", **key).json
        assert props["default_generation_settings"]["n_ctx"] == 128
        assert props["default_generation_settings"]["params"]["temperature"] == 0
        text = server.ask("/llm/apply-template", {"messages": [{"role": "user", "content": "a"}]}, **key).json
        assert text == {"prompt": "<a>"}


@contextmanager
def command_with_prefix(*words: str) -> Generator[Running]:
    process = subprocess.Popen(
        [sys.executable, "-m", "kernmill", "serve", *words, "--port", "0"], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        lines = [process.stderr.readline()]
        while "serving" not in lines[-1]:
            lines.append(process.stderr.readline())
        assert all(": serve: " in line and " is ignored: " in line for line in lines[:-1]), lines
        server = Running(int(re.findall(r":(\d+)$", lines[-1].strip())[0]))
        while True:
            try:
                if server.ask("/llm/health").status == 200:
                    break
            except ConnectionError:
                pass
            time.sleep(0.05)
        yield server
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "no model. Give a GGUF file: kernmill serve model.gguf."),
        ([""], "the path is empty: is a variable of the shell unset? Give a GGUF file."),
        (["MODEL", "--host", "0.0.0.0"], "--host 0.0.0.0 is reachable from other machines, and there is no API key: "
         "everybody could use the models. Give one with --api-key KEY, or listen on 127.0.0.1."),
        (["MODEL", "--api-key", ""], "the API key is empty. Give at least one character, or leave the option out."),
        (["MODEL", "--api-key-file", "/no"], "--api-key-file /no: cannot be read: No such file or directory."),
        (["MODEL", "--api-prefix", "llm"], "--api-prefix llm: must begin with /."),
        (["MODEL", "--chat-template", "chatml"], "--chat-template chatml: must be Jinja source. Save the template to a "
         "file, and give it with --chat-template-file."),
        (["MODEL", "MODEL", "-a", "x"], "--alias x is for one model, and there are 2."),
        (["MODEL", "--temp", "nan"], "--temperature nan: must be from -1e+06 to 1e+06."),
        (["--models-dir", "/no"], "--models-dir /no: there is no such folder."),
        (["MODEL", "--mirostat", "3"], "--mirostat 3: must be from 0 to 2."),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_mistakes_are_told(
    stories: str, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KERNMILL_API_KEY", raising=False)
    assert main(["serve", *(stories if word == "MODEL" else word for word in words)]) == 2
    assert capsys.readouterr().err == f"kernmill: serve: {sentence}\n"


def test_headers_have_a_limit_whatever_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named regression: where httptools was installed, uvicorn took it, and headers had no limit."""
    found: list[Any] = []

    def server(config: Any) -> Any:
        found.append(config)
        return SimpleNamespace(run=lambda sockets: [one.close() for one in sockets])

    monkeypatch.setattr("uvicorn.Server", server)
    assert run({"a": "a.gguf"}, ServerOptions(port=0)) == 0
    assert (found[0].http, found[0].h11_max_incomplete_event_size) == ("h11", 1 << 16)


def test_a_server_whose_model_cannot_be_loaded_ends(stories: str, caplog: pytest.LogCaptureFixture) -> None:
    """Named regression: it went on, and no request could be answered."""
    assert main(["serve", stories, "-c", "1000000000", "--port", "0"]) == 1
    assert "stories260Ktok512 cannot be loaded: Model: a context of 1000000000 tokens takes" in caplog.text


def test_a_port_that_is_taken(stories: str, capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", stories, "--port", str(port)]) == 2
    assert capsys.readouterr().err == (
        f"kernmill: serve: cannot listen on 127.0.0.1:{port}: {os.strerror(98)}. Choose another --port.\n"
    )
