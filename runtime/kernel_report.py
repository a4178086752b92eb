"""The reports of DEBUG and DUMP: a line per kernel, its UOps, source and assembly; and the work of a launch."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING

from kernmill.compiler import Action, Estimate, apply_actions, estimate, show_schedule
from kernmill.ir import (
    CompileError,
    Kernel,
    MemoryPlan,
    Ops,
    SettingError,
    UOp,
    const,
    debug,
    print_uops,
    setting,
    show_ns,
    simplify,
    substitute,
)

from . import later, recorder, watch
from .programs.compiling import describe, given_actions, launch_cost, render, schedule_of
from .programs.schedules import symbol

if TYPE_CHECKING:
    from .device import Device
    from .memory.buffer import Buffer

__all__ = ["report", "report_copy", "report_memory", "work_of"]


_shown_kernels: set[str] = set()


@lru_cache(maxsize=4096)
def counts_of(ast: UOp) -> Estimate:
    """Return the counts of operations and bytes, cached: counting takes longer than a small kernel runs."""
    return estimate(ast)


def work_of(device: Device, kernel: Kernel, values: Mapping[str, int]) -> Estimate:
    """Return the work of a launch at these values of its variables. A kernel with the action `scatter` counts as one
    addition a term, not one a pair."""
    names = {name for name, _, _ in kernel.variables}
    has_scatter = {Ops.REDUCE, Ops.EQ} <= {node.op for node in kernel.ast.toposort()}
    scatters = [a for a in schedule_of(device, kernel) if a.verb == "scatter"] if has_scatter else []
    return _work(kernel.ast, tuple(scatters), tuple((name, values[name]) for name in sorted(names) if name in values))


@lru_cache(maxsize=4096)
def _work(ast: UOp, scatters: tuple[Action, ...], values: tuple[tuple[str, int], ...]) -> Estimate:
    known = dict(values)
    variables = [node for node in ast.toposort() if node.op is Ops.VARIABLE and node.arg[0] in known] if known else []
    with suppress(CompileError):  # `scatter` names a loop that another action makes
        ast = apply_actions(ast, scatters)
    return estimate(simplify(substitute(ast, {node: const(node.dtype, known[node.arg[0]]) for node in variables})))


def report(device: Device, kernels: Sequence[Kernel], times: Sequence[int], values: Mapping[str, int]) -> None:
    """Print and dump a batch according to DEBUG and DUMP. Rates are those of these values of variables."""
    if (profile := recorder.active) is not None:
        clock = [*accumulate(times, initial=perf_counter_ns() - sum(times))]
        profile.add(device, kernels, clock)
    for kernel, time_ns in zip(kernels, times, strict=True):
        if watch.launched is not None:
            before = watch.launched.get((device.name, kernel.ast), (kernel, 0))
            watch.launched[device.name, kernel.ast] = kernel, before[1] + time_ns
        if debug() >= 2:
            counts = work_of(device, kernel, values)
            rate = f"{counts.flops / max(1, time_ns):8.2f} GFLOP/s {counts.bytes_moved / max(1, time_ns):7.2f} GB/s"
            print(
                f"{device.name:6} {kernel.name:40} {time_ns / 1e3:10.1f} us {rate}  {kernel.origin or ''}"
                f"  {launch_cost(device, kernel).why}",
                file=sys.stderr,
            )
        if debug() >= 3:
            show_kernel(device, kernel)
        if setting("DUMP"):
            dump_kernel(device, kernel, time_ns)


def report_copy(target: Buffer, source: Buffer, time_ns: int) -> None:
    """DEBUG=2: print a line of a copy between devices, with its bytes, time and rate."""
    name = f"copy {source.device} -> {target.device}"
    nodes = [node for maker in source.makers if (node := maker()) is not None]
    line = next((node.origin for node in nodes if node.origin), None)
    if debug() >= 2:
        rate = f"{source.nbytes / max(1, time_ns):7.2f} GB/s"
        print(f"{name:30} {source.nbytes:>16,} bytes {time_ns / 1e3:10.1f} us {rate}  {line or ''}", file=sys.stderr)


def report_memory(plan: MemoryPlan) -> None:
    """DEBUG=2: print the memory of a new graph's intermediates, and the saving by sharing."""
    if debug() >= 2 and plan.arena_bytes:
        planned = sum(plan.arena_bytes.values())
        print(
            f"memory: {planned} bytes for intermediates (alive at the worst moment: {plan.lower_bound_bytes}; "
            f"without sharing: {plan.unplanned_bytes})",
            file=sys.stderr,
        )


def show_kernel(device: Device, kernel: Kernel) -> None:
    """DEBUG=3: the schedule; 4: the UOps; 5: the source; 6: the assembly. Once per kernel."""
    key = f"{device.name} {kernel.ast.key.hex()}"
    if key in _shown_kernels:
        return
    _shown_kernels.add(key)
    print(f"--- schedule of {kernel.name}\n{show_schedule(schedule_of(device, kernel))}", file=sys.stderr)
    cost = launch_cost(device, kernel)
    print(f"--- estimate of {kernel.name} on {device.target.machine.name}, one thread: {cost.why}", file=sys.stderr)
    print("\n".join(f"{show_ns(part.time_ns):>10}  {part.name}" for part in cost.notable), file=sys.stderr)
    if debug() >= 4:
        print(f"--- uops of {kernel.name}\n{print_uops(kernel.ast)}", file=sys.stderr)
    if debug() >= 5:
        rendered = render(device, kernel, given_actions(device, kernel))
        print(f"--- source of {kernel.name}\n{rendered.source}", file=sys.stderr)
        if debug() >= 6:
            print(f"--- assembly of {kernel.name}\n{device.assembly(rendered.source)}", file=sys.stderr)


def dump_kernel(device: Device, kernel: Kernel, time_ns: int) -> None:
    """DUMP: a folder per kernel with its UOps, linear list, source, assembly and figures."""
    folder = Path(str(setting("DUMP"))) / f"{symbol(kernel)}_{kernel.ast.key.hex()[:8]}"
    if folder.exists():
        return
    try:
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)  # another process may be as far
    except OSError as error:
        raise SettingError(f"DUMP: {folder} cannot be created ({error.strerror}). Give a writable folder.") from None
    page = later.pages.kernel_page(device, kernel)
    (folder / "kernel.uops").write_text(page.passes[0].uops)
    (folder / "linear.uops").write_text(page.passes[-1].uops)
    (folder / f"source.{device.name.partition(':')[0].lower()}").write_text(page.code)
    (folder / "kernel.s").write_text(page.assembly)
    (folder / "kernel.schedule").write_text(page.schedule + "\n")
    (folder / "page.json").write_bytes(page.json())
    (folder / "kernel.json").write_text(json.dumps({**describe(kernel, device), "time_ns": time_ns}, indent=1) + "\n")
