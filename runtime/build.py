"""From a kernel to a program: look it up in memory, then on disk, else lower, render, compile and store it.

The key on disk is made of the kernel before optimization, the device's tag and a stamp of the compiler's own sources:
a warm start neither optimizes nor renders anything, and never imports LLVM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from kernmill.compiler import Action, Kernel, estimate, fitting, lower, merge_loops, show_schedule
from kernmill.ir import AxisKind, CompileError, InternalError, Ops, UOp, print_uops, setting
from kernmill.renderers import signature

from .compile_cache import cache_key, default_cache
from .device import Device, Program
from .schedules import given_schedule, parsed, stamp, symbol, written_schedule
from .tune import search

__all__ = ["Rendered", "build", "build_all", "compile_with", "counters", "render"]


@dataclass(slots=True)
class Counters:
    """What this process has built."""

    compiled: int = 0
    from_disk: int = 0
    from_memory: int = 0


counters = Counters()
_MemoryKey: TypeAlias = "tuple[str, str, UOp, str, int | str]"
_programs: dict[_MemoryKey, Program] = {}
_MANY = 4  # new kernels at once: fewer are compiled before another process has started


@dataclass(frozen=True, slots=True)
class Rendered:
    """A kernel on its way to a program: the linear list, its text, the size of its parallel loop."""

    uops: list[UOp]
    source: str
    threads: int


def build(device: Device, kernel: Kernel) -> Program:
    """The program of a kernel.

    Raises:
        CompileError: the device's compiler refused the source; the message shows where.
    """
    return build_all([(device, kernel)])[0]


def build_all(wanted: Sequence[tuple[Device, Kernel]]) -> list[Program]:
    """The programs of kernels. Many new ones are compiled beside this process, if the device can do that.

    Raises:
        CompileError: a device's compiler refused a source; the message shows where.
    """
    keys = [_memory_key(device, kernel) for device, kernel in wanted]
    new: dict[_MemoryKey, _Unfinished] = {}
    for key, (device, kernel) in zip(keys, wanted, strict=True):
        if key in _programs or key in new:
            counters.from_memory += 1
            continue
        given = _schedule_text(device, kernel)
        disk_key = cache_key(kernel.ast.key, device.cache_tag(), stamp(), given or "")
        entry = default_cache().get(disk_key)
        if entry is None:
            new[key] = _Unfinished(device, kernel, disk_key, given)
            continue
        counters.from_disk += 1
        _programs[key] = program = device.load(symbol(kernel), entry.payload)
        program.threads, program.work_ns = int(str(entry.header["threads"])), float(str(entry.header["work_ns"]))
    for unfinished in new.values():
        unfinished.begin(is_one_of_many=len(new) >= _MANY)
    for key, unfinished in new.items():
        _programs[key] = unfinished.finish()
    return [_programs[key] for key in keys]


def _memory_key(device: Device, kernel: Kernel) -> _MemoryKey:
    return device.name, device.cache_tag(), kernel.ast, written_schedule(kernel) or "", setting("BEAM")


def _schedule_text(device: Device, kernel: Kernel) -> str | None:
    given = given_schedule(device, kernel)
    width = setting("BEAM")
    if given is None and width:
        return show_schedule(search(device, kernel, int(width), float(setting("BEAM_SECONDS"))))
    return given


class _Unfinished:
    """A kernel that is compiled now."""

    def __init__(self, device: Device, kernel: Kernel, disk_key: str, given: str | None) -> None:
        self.device, self.kernel, self.disk_key, self.given = device, kernel, disk_key, given

    def begin(self, *, is_one_of_many: bool) -> None:
        """Lower and render; hand the text to the compiler."""
        counters.compiled += 1
        rendered = render(self.device, self.kernel, parsed(self.given, self.device, self.kernel))
        name = symbol(self.kernel)
        self.threads = rendered.threads
        if is_one_of_many:
            self.binary = self.device.compile_later(name, rendered.source)
        else:
            self.binary = partial(self.device.compile, name, rendered.source)

    def finish(self) -> Program:
        """Wait for the binary, store and load it."""
        binary = self.binary()
        work = estimate(self.kernel.ast).work_ns
        header = {"name": self.kernel.name, "threads": self.threads, "work_ns": work}
        default_cache().put(self.disk_key, binary, header)
        program = self.device.load(symbol(self.kernel), binary)
        program.threads, program.work_ns = self.threads, work
        return program


def compile_with(device: Device, kernel: Kernel, actions: list[Action]) -> Program:
    """The program of a kernel as cut by these actions; it is kept nowhere.

    Raises:
        CompileError, InternalError: the actions do not fit, or the compiler cannot do what they ask.
    """
    rendered = render(device, kernel, actions)
    program = device.load(symbol(kernel), device.compile(symbol(kernel), rendered.source))
    program.threads, program.work_ns = rendered.threads, estimate(kernel.ast).work_ns
    return program


def render(device: Device, kernel: Kernel, actions: list[Action] | None = None) -> Rendered:
    """Lower and render, from scratch. A bug on the way is reported with the kernel's UOps and schedule."""
    is_chosen = actions is None
    actions = schedule_of(device, kernel) if actions is None else actions
    try:
        uops = lower(kernel.ast, device.target, actions, is_checked=bool(setting("CHECK")))
    except CompileError:
        if not is_chosen or setting("CHECK") or given_schedule(device, kernel) is not None:
            raise
        return render(device, kernel, fitting(merge_loops(kernel.ast), actions))  # the heuristic's fault stops nobody
    except InternalError as error:
        error.add_note(f"kernel:\n{print_uops(kernel.ast)}schedule:\n{show_schedule(actions)}")
        raise
    if not device.target.has_grid and any(u.op is Ops.RANGE and u.arg[1] == AxisKind.GLOBAL for u in uops):
        raise CompileError(
            f"schedule of {kernel.name}: grid is for devices with work-items; {device.name} has threads."
        )
    return Rendered(uops, device.renderer.render(symbol(kernel), uops), signature(uops).threads)


def schedule_of(device: Device, kernel: Kernel) -> list[Action]:
    """The actions in force: those written in OVERRIDE, else those that a search has stored, else the heuristic's."""
    return parsed(given_schedule(device, kernel), device, kernel)


def describe(kernel: Kernel, device: Device) -> dict[str, object]:
    """What DUMP writes of a kernel besides its texts: sizes, cost, schedule, and where it comes from."""
    cost = estimate(kernel.ast)
    nodes = kernel.ast.toposort()
    return {
        "name": kernel.name,
        "key": kernel.ast.key.hex(),
        "device": device.name,
        "target": device.target.name,
        "compiled_for": device.cache_tag(),
        "flops": cost.flops,
        "bytes": cost.bytes_moved,
        "loops": {str(r.arg[0]): str(r.src[0].arg) for r in nodes if r.op is Ops.RANGE},
        "buffers": [f"{p.dtype.name}[{p.arg[1]}]" for p in sorted_params(nodes)],
        "schedule": [str(action) for action in schedule_of(device, kernel)],
        "uops": len(nodes),
        "origin": kernel.origin,
        "origins": sorted({node.origin for node in nodes if node.origin}),
    }


def sorted_params(nodes: list[UOp]) -> list[UOp]:
    """The buffers of a kernel by slot."""
    return sorted((node for node in nodes if node.op is Ops.PARAM), key=lambda p: int(p.arg[0]))
