"""What is said of a graph over several devices: its splits, copies, predicted and measured times, and the reasons.

A split is a run of kernels of one device between copies. Tests: tests/runtime/test_placement_report.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kernmill.compiler import estimate
from kernmill.ir import Copy, DeviceTable, GraphPlan, Kernel, Placement, show_ns

from .device import Call, get_device
from .device_rates import least_ns
from .execute import allocate_buffer
from .memory.buffer import Buffer
from .programs.build import build_all
from .replay import copy_between

__all__ = ["PlacementSplit", "measure", "placement_lines", "splits_of"]


@dataclass(slots=True)
class PlacementSplit:
    """Kernels of one device that follow each other, and the copies before them. Times in nanoseconds."""

    device: str
    kernels: list[Kernel] = field(default_factory=list[Kernel])
    copies: list[tuple[str, int, float]] = field(default_factory=list["tuple[str, int, float]"])  # from, bytes, ns
    predicted_ns: float = 0.0
    measured_ns: float = 0.0

    @property
    def copies_ns(self) -> float:
        """Predicted time of the copies."""
        return sum(time_ns for _, _, time_ns in self.copies)


def splits_of(plan: GraphPlan, table: DeviceTable) -> list[PlacementSplit]:
    """The splits of a plan, with the predicted time of each."""
    splits: list[PlacementSplit] = []
    waiting: dict[str, list[tuple[str, int, float]]] = {}  # copies, by the device they go to
    for item in plan.items:
        if isinstance(item, Copy):
            source, target = plan.buffers[item.source], plan.buffers[item.target]
            size = target.numel * target.dtype.size_bytes
            time_ns = table.copy_ns(source.device, target.device, size)
            waiting.setdefault(target.device, []).append((source.device, size, time_ns))
            continue
        if not splits or splits[-1].device != item.device:
            splits.append(PlacementSplit(item.device))
        last = splits[-1]
        last.copies += waiting.pop(item.device, [])
        spec = table.spec(item.device)
        last.predicted_ns += spec.in_batch_ns if last.kernels else spec.launch_ns
        last.predicted_ns += spec.kernel_ns(estimate(item.ast).work)
        last.kernels.append(item)
    splits += [PlacementSplit(device, copies=copies) for device, copies in waiting.items()]  # of results
    return splits


def measure(plan: GraphPlan, splits: Sequence[PlacementSplit]) -> tuple[float, float]:
    """Run the items of a plan on new buffers. Returns nanoseconds of kernels and of copies; each split gets its
    own `measured_ns`. Variables are at their least."""
    buffers = [allocate_buffer(b.device, b.dtype, b.numel) for b in plan.buffers]
    for buffer in buffers:
        get_device(buffer.device).copy_in(buffer, memoryview(bytes(buffer.nbytes)))
    in_kernels = 0.0
    for split in splits:
        split.measured_ns = _time_kernels(split, buffers)
        in_kernels += split.measured_ns
    copies = [item for item in plan.items if isinstance(item, Copy)]
    return in_kernels, sum(_time_copy(buffers[item.target], buffers[item.source]) for item in copies)


def _time_kernels(split: PlacementSplit, buffers: Sequence[Buffer]) -> float:
    device = get_device(split.device)
    programs = build_all([(device, kernel) for kernel in split.kernels])
    calls = [
        Call(program, tuple([buffers[n] for n in kernel.buffers]), _least(kernel), program.threads)
        for kernel, program in zip(split.kernels, programs, strict=True)
    ]

    def run() -> None:
        device.run(calls)
        device.synchronize()

    return least_ns(run) if calls else 0.0


def _least(kernel: Kernel) -> tuple[int, ...]:
    return tuple([least for _, least, _ in kernel.variables])


def _time_copy(target: Buffer, source: Buffer) -> float:
    def run() -> None:
        copy_between(target, source)
        get_device(target.device).synchronize()

    return least_ns(run)


def placement_lines(
    plan: GraphPlan, table: DeviceTable, *, is_measured: bool = False, most_reasons: int = 3
) -> list[str]:
    """The plan as text: a line for each split, with reasons below, and what other placements were predicted to take."""
    assert plan.placement is not None
    placement = plan.placement()
    splits = splits_of(plan, table)
    kernels_ns, copies_ns = measure(plan, splits) if is_measured else (0.0, 0.0)
    lines = []
    for number, split in enumerate(splits, 1):
        count = len(split.kernels)
        what = f"{count} kernel{'s' if count != 1 else ''}" if count else "no kernels"
        came = [f"in: {size:,} bytes from {source}, {show_ns(ns)}" for source, size, ns in split.copies]
        times = f"predicted {show_ns(split.predicted_ns)}"
        times += f", measured {show_ns(split.measured_ns)}" if is_measured else ""
        lines.append("  ".join([f"split {number} of {len(splits)}  {split.device:6} {what:>11}", *came, times]))
        lines += _reasons(placement, split, most_reasons)
    predicted = sum(split.predicted_ns + split.copies_ns for split in splits)
    text = f"predicted {show_ns(predicted)} in all"
    text += f", measured {show_ns(kernels_ns + copies_ns)} ({show_ns(copies_ns)} of it copies)" if is_measured else ""
    lines.append(text)
    lines.append(_alternatives(placement))
    return lines


def _reasons(placement: Placement, split: PlacementSplit, most: int) -> list[str]:
    """Why the units of a split that take longest are on its device, as far as their lines tell units apart."""
    lines = {kernel.origin for kernel in split.kernels}
    own = [unit for unit in placement.units if unit.device == split.device and unit.origin in lines]
    own.sort(key=lambda unit: -unit.predicted_ns)
    shown = dict.fromkeys(f"    {unit.op} at {unit.origin or 'an unknown line'}: {unit.reason}" for unit in own)
    return list(shown)[:most]


def _alternatives(placement: Placement) -> str:
    whole = max(placement.predicted_ns, 1.0)
    others = sorted((ns, name) for name, ns in placement.alternatives.items())
    shown = [f"all on {name}: {show_ns(ns)} ({100 * ns / whole - 100:+.0f} %)" for ns, name in others]
    return f"this placement: {show_ns(placement.predicted_ns)}; {'; '.join(shown)}" if shown else ""
