"""LLVM as a code generator: IR text to object bytes or assembly. No pass pipeline runs here.

Kernels arrive as vector IR that needs no middle-end (measured: its passes change nothing but the time). llvmlite is
imported by the first compilation only: a process that finds all its kernels in the cache never loads it.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import queue
import re
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kernmill.ir import CompileError, LazyModule, before_forks, process_lock, setting

from ..programs.compile_cache import CompileCache, cache_key
from .host import Host, own_cpus
from .located import located

if TYPE_CHECKING:
    from .llvm_process import CompilerProcess, Emitter

__all__ = [
    "assembly", "assembly_later", "compile_cached", "compile_ir", "compile_ir_later", "compiler_process",
    "llvm_binding", "llvm_version",
]  # fmt: skip

_FORMAT = 4  # raise it when the same text and host would give other bytes for a reason in this file
_json: Any = LazyModule("json")
_llvm_process: Any = LazyModule("kernmill.runtime.cpu.llvm_process")  # a warm start compiles nothing
_metadata: Any = LazyModule("importlib.metadata")
_lock = process_lock()  # llvmlite has one global lock anyway
_process: CompilerProcess | None = None
_assemblers: dict[int, CompilerProcess] = {}  # for reports
_assembled = itertools.count()
_SHARE = 16  # requests before another process is started, which takes as long as ten
_MOST_ASSEMBLERS = 4  # each has LLVM in memory
_NICENESS = 19  # of these: the program that a report is of runs at the same time


def compile_ir(text: str, host: Host) -> bytes:
    """Object file (of the system's own format) for a module in LLVM IR text.

    Raises:
        CompileError: LLVM refuses the text; the message shows the line and its neighbours.
    """
    return bytes(_apart(functools.partial(_made, text, host, "emit_object")))


def compiler_process() -> CompilerProcess | None:
    """Return the compiling process, started if needed; None if it is disabled, has no CPU, or has failed."""
    global _process
    with _lock:
        found = _usable(_process)
        _process = found or _process
        return found


def _usable(process: CompilerProcess | None, niceness: int = 0) -> CompilerProcess | None:
    """The process, or a new one if there is none or it has ended; None as for `compiler_process`."""
    if not setting("COMPILER_PROCESS"):
        return None
    if process is None or not process.is_usable:
        is_python = sys.executable and not hasattr(sys, "frozen")  # else it is a program that embeds Python
        has_failed = process is not None and process.process.poll()  # another would do no better
        if not is_python or has_failed or own_cpus() < 2:
            return None
        try:
            with before_forks():
                started: CompilerProcess = _llvm_process.CompilerProcess(niceness)
            process = started
        except OSError:
            return None
    return None if process.is_lost else process


def compile_ir_later(text: str, host: Host) -> Callable[[], bytes]:
    """Start `compile_ir` in the compiling process, and return a function that waits for the bytes. It compiles here
    if that fails."""
    process = compiler_process()
    if process is None:
        return functools.partial(compile_ir, text, host)
    asked = process.submit(text, host.cpu, ",".join(host.features))
    return lambda: asked() or compile_ir(text, host)  # None: lost, or rejected: here the message is made


def assembly(text: str, host: Host) -> str:
    """Return the assembly of `compile_ir`'s object, for people to read."""
    return str(_made(text, host, "emit_assembly"))


def assembly_later(text: str, host: Host) -> Callable[[float | None], tuple[str, list[int]]]:
    """Start `located` in another process, and return a function that waits for it, up to a number of
    seconds. A few processes share all requests. They end when they are idle, and wait while the CPU has other work.

    Raises:
        TimeoutError: from that function, which can be called again.
    """
    count = next(_assembled)
    worker = count % min(own_cpus(), _MOST_ASSEMBLERS, 1 + count // _SHARE)
    with _lock:
        process = _usable(_assemblers.get(worker), _NICENESS)
        if process is not None:
            _assemblers[worker] = process
    here = functools.partial(assembly, host=host)
    if process is None:
        return lambda limit_s: located(text, here)
    asked = process.submit(text, host.cpu, ",".join(host.features), host.triple, how="located")

    def wait(limit_s: float | None) -> tuple[str, list[int]]:
        try:
            answer = asked(timeout=limit_s) if process.owner == os.getpid() else None
        except queue.Empty:
            raise TimeoutError from None
        if answer is None:  # as in compile_ir_later
            return located(text, here)
        found, lines = _json.loads(answer)
        return found, lines

    return wait


def compile_cached(
    text: str, host: Host, header: Mapping[str, object], cache: CompileCache, *, is_later: bool = False
) -> Callable[[], bytes]:
    """Return a function that runs `compile_ir` through the disk cache; with `is_later` the compiling process starts
    now. `header` is stored with the object, for `kernmill cache` to show."""
    key = cache_key("llvm", str(_FORMAT), llvm_version(), host.arch, host.cpu, ",".join(host.features), text)
    entry = cache.get(key)
    if entry is not None:
        return functools.partial(bytes, entry.payload)
    begun = compile_ir_later(text, host) if is_later else functools.partial(compile_ir, text, host)

    def stored() -> bytes:
        cache.put(key, payload := begun(), header)
        return payload

    return stored


@functools.cache
def llvm_version() -> str:
    """The version of llvmlite (which fixes LLVM's), read from its folder without importing it."""
    spec = importlib.util.find_spec("llvmlite")
    if spec is None or spec.origin is None:
        raise CompileError("compile: llvmlite is not installed, so no kernel can be built. Run: pip install llvmlite")
    try:
        with open(os.path.join(os.path.dirname(spec.origin), "_version.py"), encoding="utf-8") as file:
            text = file.read()
    except OSError:
        text = ""
    found = re.search(r"""^\s*(?:version_version|__version__|version)\s*=\s*['"]([^'"]+)['"]""", text, re.MULTILINE)
    if found:
        return found[1]
    return str(_metadata.version("llvmlite"))  # slower, and right for any layout


@functools.cache
def _emitter() -> Emitter:
    emitter: Emitter = _llvm_process.Emitter()
    return emitter


def llvm_binding() -> Any:
    """`llvmlite.binding`, loaded on first use and ready for this machine. It carries no types."""
    return _emitter().binding


def _apart(work: Callable[[], Any]) -> Any:
    """Do this in another thread, for which the main thread waits: Ctrl-C cannot end a call of LLVM, but the wait."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    done = queue.SimpleQueue[tuple[Any, BaseException | None]]()

    def answer() -> None:
        if hasattr(signal, "pthread_sigmask"):  # a signal must interrupt the main thread
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            done.put((work(), None))
        except BaseException as error:
            done.put((None, error))

    try:
        thread = threading.Thread(target=answer, name="kernmill-compile")  # Python waits for it at exit
        thread.start()
    except RuntimeError:  # the system starts no more threads
        return work()
    found, error = done.get()
    thread.join()
    if error is not None:
        raise error
    return found


def _made(text: str, host: Host, how: str) -> Any:
    with before_forks(is_long=True), _lock:
        try:
            machine, module = _emitter().parse(text, host.cpu, ",".join(host.features), triple=host.triple)
        except RuntimeError as error:
            raise CompileError(_explain(str(error), text)) from None
        with module:  # released while no fork can happen
            return getattr(machine, how)(module)


def _explain(message: str, text: str) -> str:
    """LLVM's message with the lines around the culprit: a position for the parser, a quoted line for the verifier."""
    lines = text.splitlines()
    found = re.search(r"<string>:(\d+):(\d+):", message)
    number = int(found[1]) if found else _quoted(message, lines)
    first = message.strip().splitlines()
    shown = "\n".join(first[:12])
    if not number:
        return f"compile: LLVM rejects the generated IR:\n{shown}"
    near = range(max(1, number - 3), min(len(lines), number + 3) + 1)
    listing = "\n".join(f"{'->' if n == number else '  '}{n:5} | {lines[n - 1]}" for n in near)
    return f"compile: LLVM refuses line {number} of the generated IR:\n{shown}\n{listing}"


def _quoted(message: str, lines: list[str]) -> int:
    quotes = {line.strip() for line in message.splitlines()[1:] if line.strip()}
    return next((n for n, line in enumerate(lines, 1) if line.split(";")[0].strip() in quotes - {""}), 0)
