"""The compiling process: the same bytes, in order; refused texts, death, forks and quiet are no loss."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from kernmill.ir import CompileError, Context
from kernmill.runtime import host, llvm_codegen, llvm_process

HOST = host.this_host()
FEATURES = ",".join(HOST.features)


def text(name: str) -> str:
    return f"define i64 @{name}(i64 %x) {{\n  %y = add i64 %x, {len(name)}\n  ret i64 %y\n}}\n"


@pytest.fixture(autouse=True)
def on_device() -> None:
    """No device is asked."""


@pytest.fixture
def process() -> Generator[llvm_process.CompilerProcess]:
    made = llvm_process.CompilerProcess()
    yield made
    made.close()


def test_the_same_bytes_in_order(process: llvm_process.CompilerProcess) -> None:
    waiting = [process.submit(text(name), HOST.cpu, FEATURES) for name in ("a", "bb", "ccc")]
    found = [wait() for wait in reversed(waiting)]
    assert found[::-1] == [llvm_codegen.compile_ir(text(name), HOST) for name in ("a", "bb", "ccc")]


def test_threads_get_what_they_asked_for(
    process: llvm_process.CompilerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers come in order: who was noted first must have asked first."""
    real = process.requests

    class Slow:
        def put(self, request: bytes | None) -> None:
            time.sleep(0.001 * (len(request or b"") % 3))
            real.put(request)

        def get(self) -> bytes | None:
            return real.get()

    monkeypatch.setattr(process, "requests", Slow())
    wrong: list[str] = []

    def ask(number: int) -> None:
        for turn in range(8):
            name = "f" + "x" * (number + turn)
            if name.encode() + b"\0" not in (process.submit(text(name), HOST.cpu, FEATURES)() or b""):
                wrong.append(name)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_refused_text_is_none_and_the_next_is_compiled(process: llvm_process.CompilerProcess) -> None:
    refused = process.submit("define nonsense", HOST.cpu, FEATURES)
    fine = process.submit(text("fine"), HOST.cpu, FEATURES)
    assert refused() is None
    assert fine()


def test_what_a_dead_process_owes_is_none(process: llvm_process.CompilerProcess) -> None:
    assert process.submit(text("one"), HOST.cpu, FEATURES)()
    process.process.kill()
    process.process.wait()
    assert process.submit(text("two"), HOST.cpu, FEATURES)() is None
    assert not process.is_usable


def test_a_child_of_a_fork_asks_a_process_of_its_own(
    process: llvm_process.CompilerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert process.is_usable
    monkeypatch.setattr(process, "owner", os.getpid() + 1)
    assert not process.is_usable
    process.close()
    assert process.process.poll() is None, "it is not ours to end"
    monkeypatch.undo()


def test_later_is_the_same_as_now(monkeypatch: pytest.MonkeyPatch) -> None:
    later = llvm_codegen.compile_ir_later(text("later"), HOST)
    assert later() == llvm_codegen.compile_ir(text("later"), HOST)
    with pytest.raises(CompileError, match="LLVM refuses"):
        llvm_codegen.compile_ir_later("define nonsense", HOST)()


@pytest.mark.parametrize("obstacle", ["unwanted", "one CPU", "failed", "embedded"])
def test_without_a_process_it_is_compiled_here(obstacle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = None
    if obstacle == "failed":
        failed = llvm_process.CompilerProcess()
        failed.process.kill()
        failed.process.wait()
    monkeypatch.setattr(llvm_codegen, "_process", failed)
    if obstacle == "one CPU":
        monkeypatch.setattr(llvm_codegen, "own_cpus", lambda: 1)
    if obstacle == "embedded":
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    with Context(COMPILER_PROCESS=0 if obstacle == "unwanted" else 1):
        assert llvm_codegen.compiler_process() is None
        later = llvm_codegen.compile_ir_later(text("here"), HOST)
    assert later() == llvm_codegen.compile_ir(text("here"), HOST)


def test_serving_ends_with_its_input() -> None:
    raw = text("f").encode()
    head = {"cpu": HOST.cpu, "features": FEATURES, "size": len(raw)}
    out = io.BytesIO()
    begun = time.monotonic()
    llvm_process.serve(io.BytesIO(json.dumps(head).encode() + b"\n" + raw), out)
    assert time.monotonic() - begun < llvm_process._IDLE_S
    size, payload = out.getvalue().split(b"\n", 1)
    assert int(size) == len(payload)


_WITHOUT_THREADS = """
import threading
def start(self):
    raise RuntimeError("can't start new thread")
threading.Thread.start = start
import numpy as np
from kernmill import Tensor, dtypes, jit
from kernmill.runtime import WeightArena
a = np.arange(40000, dtype=np.float32).reshape(200, 200) / 1e4
got = (Tensor(a) @ Tensor(a)).softmax(1) + 1
assert np.allclose(got.numpy().sum(), 40200.0), got.numpy().sum()
assert jit(lambda x: (x * 2).sum())(Tensor(a)).item() > 0
WeightArena("LLVM", [40 << 20] * 2).buffer(dtypes.float32, 4)
print("done")
"""


@pytest.mark.parametrize("setting", ["0", "1", "2"])
def test_a_program_runs_where_no_thread_can_be_started(setting: str, tmp_path: Path) -> None:
    env = {**os.environ, "COMPILER_PROCESS": setting, "CACHE_DIR": str(tmp_path), "THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_THREADS], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_serving_without_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    llvm_process.serve(io.BytesIO(b""), io.BytesIO())
