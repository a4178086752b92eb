"""Models of the hub, from a stand-in server on this machine."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kernmill.commands.cli import main
from kernmill.ir import SettingError

pytest.importorskip("huggingface_hub")
hub = pytest.importorskip("kernmill.llm.hub")

FILES = {
    "README.md": b"# a model", "small-Q8_0.gguf": b"q8", "small-Q4_K_M.gguf": b"q4", "small-mmproj-f16.gguf": b"no",
    "BF16/small-BF16-00001-of-00002.gguf": b"one", "BF16/small-BF16-00002-of-00002.gguf": b"two",
}  # fmt: skip


class Hub(ThreadingHTTPServer):
    """Answers as the hub does for one repository, owner/small."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.files, self.asked = files, list[str]()


class _Answers(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.answer(has_body=False)

    def do_GET(self) -> None:
        self.answer(has_body=True)

    def answer(self, *, has_body: bool) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(f"{self.command} {path}")
        name = path.removeprefix("/owner/small/resolve/main/")
        listing = [{"type": "file", "path": name, "size": len(data), "oid": "0" * 40}
                   for name, data in self.server.files.items()]  # fmt: skip
        if path.startswith("/api/models/owner/small/tree/main"):
            body, headers = json.dumps(listing).encode(), {"Content-Type": "application/json"}
        elif name in self.server.files:
            body = self.server.files[name]
            headers = {"X-Repo-Commit": "1" * 40, "ETag": f'"{sha256(body).hexdigest()}"'}
        else:
            return self.reply(404, b"", {"X-Error-Code": "RepoNotFound"}, has_body)
        self.reply(200, body, headers, has_body)

    def reply(self, status: int, body: bytes, headers: dict[str, str], has_body: bool) -> None:
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(key, value)
        self.end_headers()
        if has_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with Hub(dict(FILES)) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{made.server_port}")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        yield made
        made.shutdown()


@pytest.mark.parametrize(
    ("name", "file", "data"),
    [
        ("owner/small", None, b"q4"),
        ("owner/small:q8_0", None, b"q8"),
        ("owner/small", "small-Q8_0.gguf", b"q8"),
        ("owner/small:BF16", None, b"one"),
    ],
)
def test_a_file_is_chosen_and_downloaded_once(server: Hub, name: str, file: str | None, data: bytes) -> None:
    path = Path(hub.downloaded(name, file))
    assert path.read_bytes() == data
    if data == b"one":
        assert (path.parent / "small-BF16-00002-of-00002.gguf").read_bytes() == b"two"
    before = sum(asked.startswith("GET /owner") for asked in server.asked)
    assert hub.downloaded(name, file) == str(path)
    assert sum(asked.startswith("GET /owner") for asked in server.asked) == before == (2 if data == b"one" else 1)


@pytest.mark.parametrize(
    ("name", "file", "sentence"),
    [
        ("small", None, "-hf small: must be owner/name, or owner/name:quant"),
        ("../x/y", None, "-hf ../x/y: must be owner/name"),
        ("owner/small:Q2_K", None, "it has no file of Q2_K. It has: BF16/small-BF16-00001-of-00002.gguf, small-Q4"),
        ("owner/small", "other.gguf", "-hf owner/small: it has no file other.gguf. It has: "),
        ("owner/other", None, "-hf owner/other: the hub did not give it: "),
    ],
)
def test_mistakes(server: Hub, name: str, file: str | None, sentence: str) -> None:
    with pytest.raises(SettingError, match=re.escape(sentence)):
        hub.downloaded(name, file)


def test_a_folder_is_downloaded_where_there_is_no_gguf_file(server: Hub) -> None:
    server.files = {"config.json": b"{}", "model-00001-of-00002.safetensors": b"one", "README.md": b"no",
                    "model-00002-of-00002.safetensors": b"two", "model.safetensors.index.json": b"{}"}  # fmt: skip
    folder = Path(hub.downloaded("owner/small"))
    assert {path.name for path in folder.iterdir()} == server.files.keys() - {"README.md"}
    with pytest.raises(SettingError, match="Run: -hf owner/small --quantize Q8_0"):
        hub.downloaded("owner/small:Q8_0")


@pytest.mark.slow  # the hub's library tries again for some time
def test_a_hub_that_cannot_be_reached(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(SettingError, match=r"^-hf owner/small: the hub did not give it: "):
        hub.downloaded("owner/small")


def test_a_model_of_the_hub_runs(server: Hub, made: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    server.files["tiny-Q4_K_M.gguf"] = made("Q8_0").read_bytes()
    words = ["run", "-hf", "owner/small", "-hff", "tiny-Q4_K_M.gguf", "-p", "ab", "-n", "4", "--temp", "0"]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("ab")
    assert main([*words, "-m", "x.gguf"]) != 0
    assert "run: two models, x.gguf and -hf owner/small. Give one." in capsys.readouterr().err
    assert main(["run", "-hff", "x.gguf", "-p", "ab"]) != 0
    assert "--hf-file x.gguf is a file of a repository. Name it with -hf." in capsys.readouterr().err
