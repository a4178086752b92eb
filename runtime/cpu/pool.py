"""The native thread pool: a table of kernel launches runs as one call, with no Python between the entries.

Kernel ABI: `void kernel(ptr args, i64 begin, i64 end)`. `args` points to 8-byte slots, buffer addresses and i64
variables. [begin, end) is a sub-range of the kernel's outermost parallel range [0, n). If n is larger than `chunk` and
the pool has more than one thread, each thread has an equal share, in whole chunks. A thread that is done takes half of
another's remaining share. The result must not depend on which thread runs which sub-range; kernels ensure that.

Waiting threads spin for `SPIN` microseconds and then sleep: a long spin loses two to five times as soon as another
process wants the core (docs/topics/threads.md). Workers are daemon threads of Python inside one native call
without the GIL.

A call in the main thread runs the handlers of signals about every 20 ms, between slices of a kernel's range. Ctrl-C
ends it: the rest of the table is dropped, `run` raises KeyboardInterrupt, and what kernels wrote is incomplete. A range
of one iteration cannot be cut: then Ctrl-C comes when that kernel is done.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import signal
import sys
import threading
import time
import weakref
from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from kernmill.ir import FormatError, active_overrides, at_fork, process_lock, setting

from ..programs.compile_cache import default_cache
from .elf import ElfModule, libc
from .host import this_host
from .llvm_codegen import compile_cached, compile_ir
from .loader import load_object
from .pool_ir import CPU_BYTES, MOST_CHUNKS, MOST_WORKERS, POOL_FUNCTIONS, RANGE_BYTES, STATE, pool_ir

__all__ = [
    "ENTRY_WORDS",
    "Launch",
    "LaunchTable",
    "ThreadPool",
    "copy_function",
    "default_pool",
    "expect_pool",
    "touch",
]

_PYTHON = ("PyEval_SaveThread", "PyEval_RestoreThread", "PyErr_CheckSignals")
_JOIN_S = 0.5
_NOWHERE = 0xFFFFFFFF  # no CPU: the workers will be pinned again
_FAULTS = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP"}

NativeCall = Callable[..., None]
_pools: weakref.WeakSet[ThreadPool] = weakref.WeakSet()


class _Native(NamedTuple):
    run: NativeCall
    run_timed: NativeCall
    worker: NativeCall
    stop: NativeCall
    chain: int
    copy: int
    keep: ElfModule


def expect_pool() -> None:
    """Start compiling the pool's code in a second process."""
    with _making:  # two threads would ask twice
        if not _begun and not _loaded.cache_info().currsize:
            _begun.append(_code(is_later=True))


def _code(*, is_later: bool) -> Callable[[], bytes]:
    machine = this_host()
    text = pool_ir(machine.arch, sys.platform)
    return compile_cached(text, machine, {"kernel": "thread pool"}, default_cache(), is_later=is_later)


def _native() -> _Native:
    """The compiled pool, from the disk cache after the first time."""
    with _making:  # if two threads load it, one copy would be freed while it is in use
        return _loaded()


@functools.cache
def _loaded() -> _Native:
    code = _begun.pop() if _begun else _code(is_later=False)
    try:
        module = load_object(code(), POOL_FUNCTIONS, _externs())
    except FormatError:  # a stored object with wrong content
        machine = this_host()
        module = load_object(compile_ir(pool_ir(machine.arch, sys.platform), machine), POOL_FUNCTIONS, _externs())
    pointer = ctypes.c_void_p
    run = ctypes.PYFUNCTYPE(None, pointer, pointer, ctypes.c_int64)  # it releases the GIL itself
    timed = ctypes.PYFUNCTYPE(None, pointer, pointer, ctypes.c_int64, pointer)
    worker, stop = ctypes.CFUNCTYPE(None, pointer, ctypes.c_int64), ctypes.CFUNCTYPE(None, pointer)
    at = module.symbols
    threads = worker(at["km_worker"]), stop(at["km_stop"])
    return _Native(run(at["km_run"]), timed(at["km_run_timed"]), *threads, at["km_chain"], at["km_copy"], module)


def touch(address: int, size: int) -> None:
    """Have the system give this memory now. Other threads run meanwhile, and may be writing there."""
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(_native().keep.symbols["km_touch"])(address, size)


def _externs() -> dict[str, int]:
    names = ("syscall", "sched_getcpu", "clock_gettime") if sys.platform == "linux" else ("usleep", "clock_gettime")
    calls = _windows_callbacks() if sys.platform == "win32" else {name: getattr(libc(), name) for name in names}
    calls["memmove"] = ctypes.cdll.msvcrt.memmove if sys.platform == "win32" else libc().memmove
    calls |= {name: getattr(ctypes.pythonapi, name) for name in _PYTHON}
    return {name: ctypes.cast(call, ctypes.c_void_p).value or 0 for name, call in calls.items()}


@functools.cache
def _windows_callbacks() -> dict[str, Any]:
    def sleep(_microseconds: int) -> int:
        time.sleep(0.001)
        return 0

    def clock(_which: int, out: int) -> int:
        seconds, nanos = divmod(time.perf_counter_ns(), 10**9)
        ctypes.memmove(out, seconds.to_bytes(8, "little") + nanos.to_bytes(8, "little"), 16)
        return 0

    kind, number = ctypes.CFUNCTYPE, ctypes.c_int
    return {"usleep": kind(number, ctypes.c_uint)(sleep), "clock_gettime": kind(number, number, ctypes.c_void_p)(clock)}


class _Crew:
    """The state block of a pool and the threads that serve it. A forked child gets a new one."""

    def __init__(self, threads: int, spin: int) -> None:
        size = STATE["ranges"] + RANGE_BYTES * threads
        self.memory = mmap.mmap(-1, size) if sys.platform == "win32" else _private_memory(size)
        state = (ctypes.c_char * size).from_buffer(self.memory)
        self.address = ctypes.addressof(state)
        self.threads: list[threading.Thread] = []
        self.count, self.cpus, self.started = threads - 1, set[int](), threads <= 1
        self._put(STATE["threads"], threads, 8)
        self._put(STATE["spin"], 1000 * spin, 8)
        self.follow()

    def follow(self) -> None:
        """Keep the workers on the CPUs that the calling thread may use now; whoever changes that does not tell us."""
        cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
        if cpus != self.cpus:
            self.cpus = cpus
            self._put(STATE["workers"], min(self.count, MOST_WORKERS) if len(cpus) > 1 else 0, 4)
            self._put(STATE["allowed"], sum(1 << cpu for cpu in cpus if cpu < 8 * CPU_BYTES), CPU_BYTES)
            self._put(STATE["home"], _NOWHERE, 4)

    def _put(self, at: int, value: int, size: int) -> None:
        self.memory[at : at + size] = value.to_bytes(size, "little")

    def enlist(self, worker: int) -> None:
        """Make the calling thread this worker: it will be kept off the caller's CPU."""
        if worker < MOST_WORKERS:
            self._put(STATE["ids"] + 4 * worker, threading.get_native_id(), 4)
            self._put(STATE["home"], _NOWHERE, 4)

    def start(self) -> None:
        """Start the workers. Where no thread can be started (at interpreter exit) the caller does all the work."""
        self.started = True
        for index in range(self.count):
            thread = threading.Thread(target=_serve, args=(self, index), name=f"kernmill-{index + 1}", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return
            self.threads.append(thread)

    def stop(self) -> None:
        """Send the workers home and wait a moment for them."""
        if self.threads:
            _native().stop(self.address)
            limit = time.monotonic() + _JOIN_S
            for thread in self.threads:
                if thread is not threading.current_thread():
                    thread.join(max(0.0, limit - time.monotonic()))
            self.threads = []


def _private_memory(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _serve(crew: _Crew, worker: int) -> None:
    if hasattr(signal, "pthread_sigmask"):  # a signal must interrupt the main thread, not a worker
        faults = {getattr(signal, name, None) for name in _FAULTS}
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults)
    crew.enlist(worker)
    _native().worker(crew.address, worker + 1)


class ThreadPool:
    """A pool of `threads` threads, including the caller. `run` may be called from any thread; calls run one at a
    time."""

    def __init__(self, threads: int, spin: int | None = None) -> None:
        self.threads = max(1, threads)
        self.spin = int(setting("SPIN")) if spin is None else spin
        self._call, self._call_timed = _native().run, _native().run_timed
        self._renew()
        _pools.add(self)

    def _renew(self) -> None:
        self._lock = threading.RLock()
        self._crew = _Crew(self.threads, self.spin)
        self._finalizer = weakref.finalize(self, self._crew.stop)

    def renew_after_fork(self) -> None:
        """Reset in a forked child: the parent's threads do not exist here, and one of them may have held the lock."""
        self._finalizer.detach()
        self._renew()

    def run(self, table: LaunchTable) -> None:
        """Run all entries of a launch table, in order."""
        with self._lock:
            if not self._crew.started:  # here and below: one call less for each launch
                self._crew.start()
            self._call(self._crew.address, table.address, table.count)

    def run_timed(self, table: LaunchTable) -> list[int]:
        """Like `run`; returns the nanoseconds that each entry took."""
        times = array("q", bytes(8 * (table.count + 1)))
        self.run_clocked(table, times.buffer_info()[0])
        return [after - before for before, after in pairwise(times)]

    def run_clocked(self, table: LaunchTable, address: int) -> None:
        """Like `run`; writes the clock in ns before the first entry and after each to memory."""
        with self._lock:
            if not self._crew.started:
                self._crew.start()
            self._call_timed(self._crew.address, table.address, table.count, address)

    def close(self) -> None:
        """Stop the workers. The pool can still be used: it starts new ones."""
        with self._lock:
            self._finalizer()
            self._renew()


def _after_fork() -> None:
    _begun.clear()  # pending answers belong to the parent
    for pool in list(_pools):
        pool.renew_after_fork()


at_fork(after_in_child=_after_fork)


def default_pool() -> ThreadPool:
    """Return the pool of the settings `THREADS` and `SPIN`. The process's limits are checked once a second."""
    global _lately
    second, overrides, lately = int(time.monotonic()), active_overrides(), _lately
    if lately is None or lately[0] != second or lately[1] is not overrides:
        with _making:  # two threads would make two
            _lately = lately = second, overrides, _pool_for(this_host().threads(), int(setting("SPIN")))
            lately[2]._crew.follow()
    return lately[2]


_making = process_lock()
_begun: list[Callable[[], bytes]] = []  # the pool's code, where it was expected and not taken yet
_lately: tuple[int, object, ThreadPool] | None = None


@functools.cache
def _pool_for(threads: int, spin: int) -> ThreadPool:
    return ThreadPool(threads, spin)


class Launch(NamedTuple):
    """A table entry: a kernel's address, its argument slots, its parallel range [0, n), the smallest chunk, and the
    number of chunks between two signal checks; 0: all of them."""

    fn: int
    args: Sequence[int]
    n: int = 1
    chunk: int = 1
    slice: int = 0


ENTRY_WORDS = 5  # of an entry


def copy_function() -> int:
    """The address of a kernel that copies; its arguments are target, source and bytes."""
    return _native().copy


class LaunchTable:
    """Launches in the pool's format. Keep the object alive while it runs."""

    def __init__(self, launches: Sequence[Launch]) -> None:
        self.count, words = len(launches), list[int]()
        for fn, _, n, chunk, part in launches:
            words += (fn, 0, n, max(1, chunk, -(-n // MOST_CHUNKS)), part)
        self._first = [len(words)]  # where the arguments of each entry begin
        for launch in launches:
            words += launch.args
            self._first.append(len(words))
        self._words = array("q", words)  # entries and arguments: eager mode makes one for each launch
        self.address = self._words.buffer_info()[0]
        for index in range(self.count):
            self._words[ENTRY_WORDS * index + 1] = self.address + 8 * self._first[index]

    def argument(self, entry: int, slot: int) -> tuple[array[int], int]:
        """Return the location of an argument, a buffer address or a variable: the array, and the index in it."""
        first, end = self._first[entry : entry + 2]
        if not 0 <= slot < end - first:
            raise IndexError(f"argument: entry {entry} has {end - first} slots, not slot {slot}")
        return self._words, first + slot

    def rows(self) -> list[int]:
        """The entries as words, which point to the arguments of this table: it must stay alive."""
        return list(self._words[: ENTRY_WORDS * self.count])

    @classmethod
    def of_rows(cls, rows: Sequence[int]) -> LaunchTable:
        """A table of entries of others, which keep their arguments."""
        table = cls(())
        table.count, table._words = len(rows) // ENTRY_WORDS, array("q", rows)
        table.address = table._words.buffer_info()[0]
        return table

    def linked(self, first: int, end: int, parts: int, together: int, chunk: int, part: int = 0) -> Launch:
        """Link entries `first` to `end`, each with equally many iterations in each of `parts`, into one entry that
        runs all of them on `together` parts at a time. Its arguments are this table's, which must stay alive."""
        rows = [self._words[at : at + 3] for at in range(ENTRY_WORDS * first, ENTRY_WORDS * end, ENTRY_WORDS)]
        steps = [value for fn, args, n in rows for value in (fn, args, n // parts)]
        return Launch(_native().chain, (together, *steps, 0), parts, chunk, part)
