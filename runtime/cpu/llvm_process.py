"""LLVM in separate processes: IR text in, object bytes out, while this process lowers the next kernel.

llvmlite holds one lock around every call, so threads would compile one after another. This file is also the program of
such a process (`python -S -P llvm_process.py 0`, where 0 is its niceness). It needs llvmlite only, so it starts in a
tenth of a second, whatever the user's program does at import. For reports it loads located.py too. If a process dies or
was idle for long, its outstanding requests are compiled here.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from functools import cache, partial
from typing import IO, Any, Final

__all__ = ["CompilerProcess", "Emitter", "serve"]

_IDLE_S: Final = 30.0
_LEVEL: Final = 2  # of the code generator; for the effect of the others see docs/topics/compile-time.md
_FOLDS_MASKED_LOADS: Final = (22,)  # LLVM whose peephole pass moves them into permutations, which read all lanes


class Emitter:
    """llvmlite, configured for this machine; target machines are cached."""

    def __init__(self) -> None:
        self.binding: Any = importlib.import_module("llvmlite.binding")  # it carries no types
        self.binding.initialize_native_target()
        self.binding.initialize_native_asmprinter()
        self.machines: dict[tuple[str, str, int, str], Any] = {}
        if self.binding.get_process_triple().startswith("x86_64"):  # there it takes any values for shuffles, and aborts
            self.binding.set_option("kernmill", "--lower-interleaved-accesses=false")

    def parse(self, text: str, cpu: str, features: str, level: int = _LEVEL, triple: str = "") -> tuple[Any, Any]:
        """The target machine and the module; without a triple for this machine. Raises RuntimeError with LLVM's
        message."""
        machine = self.machines.get((cpu, features, level, triple))
        if machine is None:
            if triple:
                self.binding.initialize_all_targets()
                self.binding.initialize_all_asmprinters()
            target = self.binding.Target.from_triple(triple or self.binding.get_process_triple())
            how = "static" if triple.startswith("hexagon") else "pic"  # there kernels are linked to a fixed address
            machine = target.create_target_machine(cpu, features, level, how, "default")
            self.machines[cpu, features, level, triple] = machine
        if self.binding.llvm_version_info >= _FOLDS_MASKED_LOADS:
            is_off = str("llvm.masked.load" in text).lower()
            self.binding.set_option("kernmill", f"--disable-peephole={is_off}")
        module = self.binding.parse_assembly(text)
        module.verify()
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        return machine, module


class CompilerProcess:
    """A compiling process. Requests are answered in order; a lost one is answered with None."""

    def __init__(self, niceness: int = 0) -> None:
        import subprocess  # a warm start does without

        self.owner = os.getpid()
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-P", __file__, str(niceness)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(folder or os.getcwd() for folder in sys.path)},
            start_new_session=True,  # Ctrl-C is for us
        )  # fmt: skip
        self.requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.waiting: queue.SimpleQueue[queue.SimpleQueue[bytes | None]] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.is_lost = False
        self.threads = [
            threading.Thread(target=work, name="kernmill-llvm", daemon=True) for work in (self._write, self._read)
        ]
        atexit.register(self.close)
        try:
            for thread in self.threads:
                thread.start()
        except RuntimeError:  # the system starts no more threads: this process compiles itself
            self.close()

    @property
    def is_usable(self) -> bool:
        """True if this process can still send requests to it."""
        return not self.is_lost and self.owner == os.getpid() and self.process.poll() is None

    def submit(
        self, text: str, cpu: str, features: str, triple: str = "", limit_s: float | None = None, *,
        how: str = "emit_object",
    ) -> Callable[..., bytes | None]:  # fmt: skip
        """Compile this; the result, when called for, waits. None: the process was lost, or LLVM refuses the text.
        queue.Empty: it takes longer than `limit_s`, or than the argument `timeout` of that call. `how`: emit_object,
        emit_assembly, or located: assembly with the line of each line, as JSON."""
        answer: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        raw = text.encode()
        head = json.dumps({"cpu": cpu, "features": features, "triple": triple, "size": len(raw), "how": how}).encode()
        with self.lock:  # answers come in the order of requests
            self.waiting.put(answer)
            self.requests.put(head + b"\n" + raw)
        if self.is_lost:  # the reader has gone meanwhile and will not see this one
            return _lost
        return partial(answer.get, timeout=limit_s)

    def _write(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            while (request := self.requests.get()) is not None:
                self.process.stdin.write(request)
                self.process.stdin.flush()
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            while line := self.process.stdout.readline():
                size = int(line)
                answer = self.waiting.get()
                payload = self.process.stdout.read(max(0, size))
                if len(payload) != max(0, size):
                    answer.put(None)
                    break
                answer.put(payload if size >= 0 else None)
        self.is_lost = True
        self.requests.put(None)
        with contextlib.suppress(queue.Empty):
            while True:  # no wait is unlimited
                self.waiting.get_nowait().put(None)
        self.process.stdout.close()
        self.process.wait()

    def close(self) -> None:
        """End the process."""
        if self.owner != os.getpid():
            return
        self.is_lost = True
        self.requests.put(None)
        self.process.kill()
        for thread in self.threads:
            if thread.ident is not None:  # else it was never started
                thread.join()
        self.process.wait()
        atexit.unregister(self.close)


def _lost(timeout: float | None = None) -> None:
    """The answer of a process that was lost."""


def serve(source: IO[bytes], target: IO[bytes]) -> None:
    """Answer requests until there are none for long: the bytes of an object, or of its assembly with lines, or -1 for a
    text that LLVM rejects."""
    emitter = Emitter()
    while True:
        idle = threading.Timer(_IDLE_S, os._exit, (0,))
        idle.daemon = True
        with contextlib.suppress(RuntimeError):  # no thread can be started: then it waits without a limit
            idle.start()
        line = source.readline()
        idle.cancel()
        if not line:
            return
        asked = json.loads(line)
        text = source.read(asked["size"]).decode()
        try:
            payload = _answer(emitter, text, asked)
            target.write(b"%d\n" % len(payload) + payload)
        except RuntimeError:
            target.write(b"-1\n")
        target.flush()


def _answer(emitter: Emitter, text: str, asked: dict[str, Any]) -> bytes:
    def emitted(text: str, how: str) -> Any:
        machine, module = emitter.parse(text, asked["cpu"], asked["features"], triple=asked.get("triple", ""))
        return getattr(machine, how)(module)

    if asked.get("how") == "located":
        return json.dumps(_neighbour("located").located(text, partial(emitted, how="emit_assembly"))).encode()
    if asked.get("how") == "emit_assembly":
        return str(emitted(text, "emit_assembly")).encode()
    return bytes(emitted(text, "emit_object"))


@cache
def _neighbour(name: str) -> Any:
    """A file of this folder, without the package around it, which would import all of kernmill."""
    spec = importlib.util.spec_from_file_location(name, os.path.join(os.path.dirname(__file__), f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    if hasattr(os, "nice"):
        os.nice(int(sys.argv[1]))
    serve(sys.stdin.buffer, sys.stdout.buffer)
