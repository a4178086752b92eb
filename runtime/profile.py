"""The reports of DEBUG and DUMP: a line per kernel, its UOps, source and assembly; and totals for a final table."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from kernmill.compiler import Estimate, estimate, show_schedule
from kernmill.ir import Kernel, MemoryPlan, SettingError, UOp, debug, print_uops, setting

from . import watch
from .programs.compiling import describe, given_actions, render, schedule_of
from .programs.schedules import symbol

if TYPE_CHECKING:
    from .device import Device
    from .memory.buffer import Buffer

__all__ = ["KernelTotal", "report", "report_copy", "report_memory", "totals"]


@dataclass(slots=True)
class KernelTotal:
    """One kernel's launches so far. Units: ns, floating-point operations, bytes."""

    name: str
    origin: str | None
    calls: int = 0
    time_ns: int = 0
    flops: int = 0
    bytes_moved: int = 0


totals: dict[str, KernelTotal] = {}
_dumped: set[str] = set()


@lru_cache(maxsize=4096)
def cost_of(ast: UOp) -> Estimate:
    """Return the cached estimate: computing it takes longer than a small kernel."""
    return estimate(ast)


def report(device: Device, kernels: Sequence[Kernel], times: Sequence[int]) -> None:
    """Add a batch to the totals; print and dump according to DEBUG and DUMP."""
    for kernel, time_ns in zip(kernels, times, strict=True):
        cost = cost_of(kernel.ast)
        if watch.launched is not None:
            before = watch.launched.get((device.name, kernel.ast), (kernel, 0))
            watch.launched[device.name, kernel.ast] = kernel, before[1] + time_ns
        total = totals.setdefault(f"{device.name} {kernel.name}", KernelTotal(kernel.name, kernel.origin))
        total.calls += 1
        total.time_ns += time_ns
        total.flops += cost.flops
        total.bytes_moved += cost.bytes_moved
        if debug() >= 2:
            rate = f"{cost.flops / max(1, time_ns):8.2f} GFLOP/s {cost.bytes_moved / max(1, time_ns):7.2f} GB/s"
            print(
                f"{device.name:6} {kernel.name:40} {time_ns / 1e3:10.1f} us {rate}  {kernel.origin or ''}",
                file=sys.stderr,
            )
        if debug() >= 3:
            show_kernel(device, kernel)
        if setting("DUMP"):
            dump_kernel(device, kernel, time_ns)


def report_copy(target: Buffer, source: Buffer, time_ns: int) -> None:
    """Add a copy between devices to the totals; DEBUG=2: a line with its bytes, time and rate."""
    name = f"copy {source.device} -> {target.device}"
    nodes = [node for maker in source.makers if (node := maker()) is not None]
    line = next((node.origin for node in nodes if node.origin), None)
    total = totals.setdefault(name, KernelTotal(name, None))
    total.calls += 1
    total.time_ns += time_ns
    total.bytes_moved += source.nbytes
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
    if key in _dumped:
        return
    _dumped.add(key)
    print(f"--- schedule of {kernel.name}\n{show_schedule(schedule_of(device, kernel))}", file=sys.stderr)
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
    rendered = render(device, kernel, given_actions(device, kernel))
    (folder / "kernel.uops").write_text(print_uops(kernel.ast))
    (folder / "linear.uops").write_text(print_uops(rendered.uops))
    (folder / f"source.{device.name.partition(':')[0].lower()}").write_text(rendered.source)
    (folder / "kernel.s").write_text(device.assembly(rendered.source))
    (folder / "kernel.schedule").write_text(show_schedule(schedule_of(device, kernel)) + "\n")
    (folder / "kernel.json").write_text(json.dumps({**describe(kernel, device), "time_ns": time_ns}, indent=1) + "\n")
