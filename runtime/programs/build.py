"""From a kernel to a program: look it up in memory, then on disk, else build it.

The key on disk consists of the kernel before optimization, the device's tag and a stamp of the compiler's own sources.
A warm start neither optimizes nor renders anything, and never imports LLVM or the compiler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

from kernmill.ir import CompileError, FormatError, Kernel, Ops, Progress, UOp, no_collection, setting

from .. import later, recorder
from ..cpu.elf import return_free_heap
from ..device import Device, GroupTooLarge, Program, get_device, loaded
from .compile_cache import cache_key, default_cache
from .schedules import given_schedule, stamp, symbol, written_schedule

if TYPE_CHECKING:
    from .compiling import Unfinished

__all__ = ["build", "build_all", "counters", "expect"]


@dataclass(slots=True)
class Counters:
    """Statistics of what this process has built."""

    compiled: int = 0
    from_disk: int = 0
    from_memory: int = 0


counters = Counters()
_MemoryKey: TypeAlias = "tuple[Device, str, bytes, str, int | str]"
_programs: WeakValueDictionary[_MemoryKey, Program] = WeakValueDictionary()  # plans and captures keep them alive
_MOST_THREADS = (1 << 62) - 1  # iterations of a parallel loop
_MOST_WORK_NS = 1e30  # far beyond the age of any machine
_MANY = 4  # new kernels at once: fewer are compiled before another process has started
_MANY_SUMS = 8  # of a graph that becomes as many


def build(device: Device, kernel: Kernel) -> Program:
    """The program of a kernel.

    Raises:
        CompileError: the device's compiler refused the source; the message shows where.
    """
    return build_all([(device, kernel)])[0]


@no_collection()
def build_all(wanted: Sequence[tuple[Device, Kernel]]) -> list[Program]:
    """Return the programs of kernels. Many new ones are compiled by a second process, if the device supports that.

    Raises:
        CompileError: a device's compiler rejected a source; the message shows where.
    """
    keys = [(d, d.tag, k.key, written_schedule(d, k) or "", setting("BEAM")) for d, k in wanted]
    found = {key: program for key in keys if (program := _programs.get(key)) is not None}
    new: dict[_MemoryKey, Unfinished] = {}
    for key, (device, kernel) in zip(keys, wanted, strict=True):
        if key in found or key in new:
            counters.from_memory += 1
            continue
        given = _schedule_text(device, kernel)
        disk_key = cache_key(kernel.key, device.tag, stamp(), given or "")
        with recorder.span("load", kernel.name):
            program = _stored_program(device, kernel, disk_key)
        if program is None:
            new[key] = later.compiling.Unfinished(device, kernel, disk_key, given)
            continue
        counters.from_disk += 1
        found[key] = program
        program.smaller = partial(_smaller, device, kernel, disk_key, given)
    is_many = len(new) >= (1 if setting("COMPILER_PROCESS") == 2 else _MANY)
    for device in {unfinished.device for unfinished in new.values()} if is_many else ():
        device.expect_many()
    order = sorted(new.items(), key=lambda item: -len(item[1].kernel.ast.toposort()))  # all wait for the last
    for _, unfinished in order:
        with recorder.span("compile", unfinished.kernel.name):
            unfinished.begin(is_one_of_many=is_many)
    with Progress("compiling", len(order), "kernel") as bar:
        for key, unfinished in order:
            with recorder.span("compile", unfinished.kernel.name):
                found[key] = unfinished.finish()
            bar.advance(text=unfinished.kernel.name)
    _programs.update(found)
    if is_many:
        return_free_heap()
    return [found[key] for key in keys]


def _stored_program(device: Device, kernel: Kernel, disk_key: str) -> Program | None:
    """Return the program of an entry on disk; None if there is no such entry, or its content is invalid."""
    entry = default_cache().get(disk_key)
    facts = None if entry is None else _StoredFacts.of(entry.header, len(kernel.buffers))
    if entry is None or facts is None:
        return None
    try:
        program = loaded(device, symbol(kernel), entry.payload)
    except GroupTooLarge:
        raise
    except (FormatError, CompileError, ValueError, SyntaxError, LookupError):
        return None
    program.threads, program.work_ns, program.touched = facts
    return program


class _StoredFacts(NamedTuple):
    """The header of a stored program."""

    threads: int
    work_ns: float
    touched: str

    @classmethod
    def of(cls, header: Mapping[str, object], buffers: int) -> _StoredFacts | None:
        """None if a field is absent, of another type or out of range."""
        threads, work_ns, touched = (header.get(name) for name in cls._fields)
        if type(threads) is not int or not 0 <= threads <= _MOST_THREADS:
            return None
        if not isinstance(work_ns, int | float) or isinstance(work_ns, bool) or not 0 <= work_ns <= _MOST_WORK_NS:
            return None
        if not isinstance(touched, str) or not {*touched} <= {*"rsw"} or len(touched) not in (0, buffers):
            return None
        return cls(threads, float(work_ns), touched)


def expect(graph: UOp, devices: Iterable[str]) -> None:
    """Of a graph that is not known: have its devices ready for many kernels, which takes as long as scheduling does."""
    is_one_of_many = setting("COMPILER_PROCESS") == 2
    if is_one_of_many or sum(node.op is Ops.REDUCE for node in graph.toposort()) >= _MANY_SUMS:
        for name in devices:
            get_device(name).expect_many()


def _smaller(*of: Any) -> Program | None:
    """Rebuild a stored kernel with smaller groups, if possible."""
    return later.compiling.Unfinished(*of).smaller()


def _schedule_text(device: Device, kernel: Kernel) -> str | None:
    given = given_schedule(device, kernel)
    width = setting("BEAM")
    if given is None and width:
        return later.tune.search(device, kernel, int(width), float(setting("BEAM_SECONDS")))
    if given is None and width == "" and int(setting("TRY")) > 1:
        return later.tune.try_candidates(device, kernel, int(setting("TRY")))
    return given
