"""A program that is not found is made: its kernel is lowered, rendered, compiled and stored."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

from kernmill.compiler import (
    Action,
    Cost,
    estimate,
    kernel_cost,
    locality,
    lower,
    optimize_loops,
    parse_schedule,
    show_schedule,
)
from kernmill.ir import AxisKind, CompileError, InternalError, Kernel, Ops, Target, UOp, print_uops, setting
from kernmill.renderers import signature

from .. import later, recorder
from ..device import Device, GroupTooLarge, Program, loaded
from ..opening import asked
from .build import counters
from .compile_cache import default_cache
from .schedules import given_schedule, symbol, written_schedule

__all__ = [
    "Rendered", "Unfinished", "compile_with", "given_actions", "heuristic_schedule", "launch_cost", "misfit",
    "render", "schedule_of",
]  # fmt: skip


def heuristic_schedule(device: Device, kernel: Kernel) -> list[Action]:
    """Return the heuristic's choice."""
    return parse_schedule("\n".join(optimize_loops(kernel.ast, device.target).arg.actions))


class Rendered(NamedTuple):
    """A kernel on its way to a program: the linear list, its text, its parallel loop's size, and the slices it
    accesses."""

    uops: list[UOp]
    source: str
    threads: int
    touched: str


class Unfinished:
    """A kernel that is compiled now."""

    def __init__(self, device: Device, kernel: Kernel, disk_key: str, given: str | None) -> None:
        self.device, self.kernel, self.disk_key, self.given = device, kernel, disk_key, given
        self.target = device.target

    def begin(self, *, is_one_of_many: bool) -> None:
        """Lower and render; pass the text to the compiler. Work-groups that need too much memory are made smaller."""
        while True:
            try:
                actions = None if self.given is None else parse_schedule(self.given, self.kernel.name)
                self.rendered = render(self.device, self.kernel, actions, self.target)
                break
            except GroupTooLarge:
                if not self.shrink():
                    raise
            except CompileError:
                if self.given is None or written_schedule(self.device, self.kernel) is not None:
                    raise
                self.given = None  # a stored schedule that does not fit: as if there were none
        begin = self.device.compile_later if is_one_of_many else partial(partial, self.device.compile)
        self.binary = begin(symbol(self.kernel), self.rendered.source)

    def finish(self) -> Program:
        """Wait for the binary, store and load it; with smaller groups where the driver finds these too large."""
        try:
            binary = self.binary()
        except CompileError as error:
            error.kernels = (self.kernel,)
            raise
        try:
            program = loaded(self.device, symbol(self.kernel), binary)
        except GroupTooLarge:
            smaller = self.smaller()
            if smaller is None:
                raise
            return smaller
        counters.compiled += 1
        uops, _, program.threads, program.touched = self.rendered
        program.work_ns = kernel_cost(uops, self.target).total_ns
        program.smaller = self.smaller
        facts = {"threads": program.threads, "touched": program.touched, "work_ns": program.work_ns}
        default_cache().put(self.disk_key, binary, {"name": self.kernel.name, **facts})
        return program

    def shrink(self) -> bool:
        """Halve the work-items of a group from now on; return True if the group size is free and was above 1."""
        self.target = replace(self.target, group_items=self.target.group_items // 2)
        return self.given is None and self.target.group_items > 0

    def smaller(self) -> Program | None:
        """The program with smaller groups, if there can be one."""
        if not self.shrink():
            return None
        self.begin(is_one_of_many=False)
        return self.finish()


def compile_with(device: Device, kernel: Kernel, actions: list[Action]) -> Program:
    """Return the program of a kernel with these actions; it is not cached.

    Raises:
        CompileError, InternalError: the actions do not fit, or the compiler cannot apply them.
    """
    rendered = render(device, kernel, actions)
    program = device.load(symbol(kernel), device.compile(symbol(kernel), rendered.source))
    program.threads, program.work_ns = rendered.threads, kernel_cost(rendered.uops, device.target).total_ns
    return program


def render(
    device: Device, kernel: Kernel, actions: list[Action] | None = None, target: Target | None = None
) -> Rendered:
    """Lower and render, from scratch, with these actions, or with those that the heuristic chooses.

    If the heuristic's choice does not fit, the loops are unchanged, with a warning: its bugs fail only our own tests. A
    bug in a pass is reported with the kernel's UOps and schedule.
    """
    target = target or device.target
    texts = None if recorder.active is None else recorder.active.texts
    passes = None if texts is None else later.pages.Passes(kernel)
    try:
        ast = optimize_loops(kernel.ast, target, actions)
        seen = _unseen if passes is None else passes.seen
        seen("optimize", ast)
        uops = lower(ast, target, kernel.ast, is_checked=bool(setting("CHECK")), seen=seen)
    except CompileError as error:
        if actions is not None or setting("CHECK"):
            raise
        warnings.warn(f"{error} The heuristic chose it: please report that. The kernel will be slow.", stacklevel=2)
        return render(device, kernel, [], target)
    except InternalError as error:
        shown = "the heuristic's" if actions is None else show_schedule(actions)
        error.add_note(f"kernel:\n{print_uops(kernel.ast)}schedule:\n{shown}")
        error.kernels = (kernel,)
        raise
    _check_supported(device, kernel, uops)
    kinds = {u.arg[1] for u in uops if u.op is Ops.RANGE}
    if not device.target.group_items and kinds & {AxisKind.GLOBAL, AxisKind.LOCAL}:
        raise CompileError(
            f"schedule of {kernel.name}: grid, local and share are for devices with work-items; {device.name} has none."
        )
    _check_group(device, kernel, uops)
    if texts is None or passes is None:
        code = device.renderer.render(symbol(kernel), uops)
    else:
        texts[device.name, kernel.key] = known = later.pages.texts_of(device, kernel, passes, uops, ast).begun(device)
        code = known.code
    return Rendered(uops, code, signature(uops).threads, locality(ast))


def _unseen(name: str, uops: UOp | Sequence[UOp]) -> None:
    """Keep nothing of what passes leave."""


def _check_supported(device: Device, kernel: Kernel, uops: Sequence[UOp]) -> None:
    """Raise CompileError for an op or dtype that the device has not, and that nothing has rewritten."""
    target = device.target
    for node in {(u.op, u.dtype): u for u in uops if u.op.is_elementwise}.values():
        dtype, reason = node.dtype.scalar, ""
        if node.op not in target.ops:
            reason = "the op is not in the ops of its Target, and no rule writes it with others"
        elif dtype.is_float and dtype.bits >= 32 and dtype not in target.compute_dtypes:
            reason = "the dtype is not in the compute_dtypes of its Target, and nothing else is as exact"
        elif (answer := asked(device.name, "supports", device.supports, node.op, node)) is not True:
            reason = str(answer or "it does not say why")
        if reason:
            line = f" ({kernel.origin})" if kernel.origin else ""
            raise CompileError(
                f"kernel {kernel.name}{line}: {device.name} cannot compute {node.op.name} of {dtype.name}: {reason}. "
                "Compute this part on another device, with .to(device)."
            )


def _check_group(device: Device, kernel: Kernel, uops: list[UOp]) -> None:
    """Raise GroupTooLarge for a group that the device cannot have."""
    group, target = signature(uops).group, device.target
    shared = sum(u.arg[1] * u.dtype.size_bytes for u in uops if u.op is Ops.LOCAL and "shared" in u.arg)
    if group > target.group_items or shared > target.local_bytes:
        raise GroupTooLarge(
            f"kernel {kernel.name}: a group of {group} work-items that share {shared} bytes. {device.name} takes "
            f"groups of {target.group_items} with {target.local_bytes} bytes; split its loops further."
        )


def given_actions(device: Device, kernel: Kernel) -> list[Action] | None:
    """Return the actions of OVERRIDE, else those that a search has stored; None: use the heuristic."""
    given = given_schedule(device, kernel)
    return None if given is None else parse_schedule(given, kernel.name)


@lru_cache(maxsize=4096)
def misfit(ast: UOp, target: Target, schedule: str) -> str:
    """Return why a schedule cannot be applied to a kernel; nothing if it can."""
    try:
        optimize_loops(ast, target, parse_schedule(schedule, ast.arg.name))
    except CompileError as error:
        return str(error)
    return ""


def schedule_of(device: Device, kernel: Kernel) -> list[Action]:
    """The actions in force."""
    given = given_actions(device, kernel)
    return heuristic_schedule(device, kernel) if given is None else given


@lru_cache(maxsize=4096)
def _estimated(device: Device, ast: UOp, schedule: str) -> Cost:
    target = device.target
    return kernel_cost(lower(optimize_loops(ast, target, parse_schedule(schedule)), target, ast), target)


def launch_cost(device: Device, kernel: Kernel) -> Cost:
    """Return the estimated time of a launch on one thread with the schedule in force, and its parts.

    Raises:
        CompileError, InternalError: the kernel cannot be lowered.
    """
    return _estimated(device, kernel.ast, show_schedule(schedule_of(device, kernel)))


def describe(kernel: Kernel, device: Device) -> dict[str, object]:
    """Return the figures of a kernel for DUMP: sizes, cost, schedule, and source location."""
    cost, launch = estimate(kernel.ast), launch_cost(device, kernel)
    nodes = kernel.ast.toposort()
    params = sorted((node for node in nodes if node.op is Ops.PARAM), key=lambda p: int(p.arg[0]))
    return {
        "name": kernel.name,
        "key": kernel.ast.key.hex(),
        "device": device.name,
        "target": device.target.name,
        "compiled_for": device.cache_tag(),
        "flops": cost.flops,
        "bytes": cost.bytes_moved,
        "estimate_ns": round(launch.total_ns),
        "parts_ns": {part.name: round(part.time_ns) for part in launch.parts},
        "loops": {str(r.arg[0]): str(r.src[0].arg) for r in nodes if r.op is Ops.RANGE},
        "buffers": [f"{p.dtype.name}[{p.arg[1]}]" for p in params],
        "schedule": [str(action) for action in schedule_of(device, kernel)],
        "uops": len(nodes),
        "origin": kernel.origin,
        "origins": sorted({node.origin for node in nodes if node.origin}),
    }
