"""Texts of slots in files: as llama-server's clients ask."""

from __future__ import annotations

import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kernmill.ir import KernmillError
from kernmill.llm import Model
from kernmill.llm.engine import Engine, GenerationRequest
from kernmill.serve.errors import RequestError
from kernmill.serve.limits import ServerOptions
from kernmill.serve.slot_files import act_on_slot

from .conftest import Running, loaded, running

PROMPT = {"prompt": "The cat and the dog went to the park", "temperature": 0, "max_tokens": 8}


def act(server: Running, action: str, number: int = 0, **body: Any) -> Any:
    return server.ask(f"/slots/{number}?action={action}", body)


def cached(answer: Any) -> int:
    found: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def test_a_text_of_a_slot_outlives_the_server(stories: str, tmp_path: Path) -> None:
    options = ServerOptions(slots=1, slot_folder=str(tmp_path))
    with running({"stories": stories}, options, loaded) as server:
        first = server.ask("/v1/completions", PROMPT).json
        held = server.ask("/slots").json[0]["n_tokens"]
        saved = act(server, "save", filename="a.bin").json
        assert saved["n_saved"] == held
        assert saved["n_written"] == (tmp_path / "a.bin").stat().st_size
        assert act(server, "erase").json == {"id_slot": 0, "n_erased": held}
        again = server.ask("/v1/completions", PROMPT).json
        assert cached(again) == 0
    with running({"stories": stories}, options, loaded) as server:
        assert act(server, "restore", filename="a.bin").json["n_restored"] == held
        restored = server.ask("/v1/completions", PROMPT).json
        assert cached(restored) == restored["usage"]["prompt_tokens"] - 1
        assert restored["choices"] == again["choices"] == first["choices"]


def test_what_a_slot_cannot_do(stories: str, tmp_path: Path) -> None:
    (tmp_path / "damaged").write_bytes(b"x" * 100)
    os.symlink("/etc/passwd", tmp_path / "link")
    with running({"stories": stories}, ServerOptions(slots=1, slot_folder=str(tmp_path)), loaded) as server:
        for name in ("../a", "/tmp/a", ".a", "a/b", "", "a" * 200, "é", None):
            answered = act(server, "save", filename=name)
            assert (answered.status, answered.error["param"]) == (400, "filename"), name
        for name in ("none", "link"):
            assert act(server, "restore", filename=name).status == 404
        for answered in (
            act(server, "restore", filename="damaged"), act(server, "save", filename="b"), act(server, "erase", 7),
            act(server, "zzz"), server.ask("/slots/0", {}),
        ):  # fmt: skip
            assert answered.status == 400
            assert str(tmp_path) not in answered.error["message"]
        assert sorted(os.listdir(tmp_path)) == ["damaged", "link"]


def test_without_a_folder_nothing_is_saved(server: Running) -> None:
    assert act(server, "save", filename="a").status == 501
    assert act(server, "erase").status == 200


def test_a_slot_with_a_running_text_is_busy(stories: str) -> None:
    called: list[Future[Any]] = []
    with ThreadPoolExecutor(1) as pool, Engine(Model.from_gguf(stories, capacity=64), slots=1) as engine:

        def on_piece(piece: Any) -> None:  # by the engine's thread: the text is running
            if not called:
                called.append(pool.submit(act_on_slot, engine, 0, "erase", None, None))
                while not engine._calls:
                    time.sleep(0.001)

        generation = engine.submit(GenerationRequest([1, 5], max_tokens=5), on_piece)
        while generation.finish_reason is None:
            time.sleep(0.001)
        with pytest.raises(RequestError, match="slot 0 has a text that is being generated") as error:
            called[0].result()
        assert error.value.status == 503
        assert generation.usage.completion_tokens == 5
        assert act_on_slot(engine, 0, "erase", None, None)["n_erased"] == 6
    with pytest.raises(KernmillError, match="closed"):
        engine.erase_slot(0)
