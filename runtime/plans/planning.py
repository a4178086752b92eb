"""A graph that is not known yet: its kernels, and where in memory their buffers are."""

from __future__ import annotations

from collections.abc import Sequence

from kernmill.compiler import Draft, plan_graph
from kernmill.ir import DeviceTable, GraphPlan, MemoryPlan, Ops, OutOfMemoryError, UOp, dtypes, no_collection

from .. import watch
from ..device import get_device

__all__ = ["planned"]

_ROUNDS = 8  # of prices for bytes on a device that is full
_NEVER = 1e15  # nanoseconds for a byte, in the last round: whatever can be elsewhere is elsewhere


@no_collection()
def planned(
    roots: Sequence[UOp],
    devices: Sequence[str],
    in_place: frozenset[int],
    default: str,
    table: DeviceTable | None = None,
) -> tuple[GraphPlan, MemoryPlan]:
    """Plan kernels and the memory of intermediates. With a `table` the graph is placed on its devices.

    Raises:
        CompileError: no device of the table can compute a node.
        OutOfMemoryError: no placement was found that fits in the devices' memory.
    """
    price: dict[str, float] = {}
    copied = {node.arg for node in UOp(Ops.SINK, dtypes.void, tuple(roots)).toposort() if node.op is Ops.COPY}
    names = {*devices, default, *copied, *(table.names if table is not None else ())}
    limits = {name: get_device(name).limits for name in names}
    alignments = {name: limit.alignment for name, limit in limits.items()}
    slices = {name: limit.slice_alignment for name, limit in limits.items()}
    packers = frozenset(name for name in names if get_device(name).target.units)
    text = ""
    for left in reversed(range(_ROUNDS)):
        draft = plan_graph(Draft(roots, devices, in_place, default, table, price, alignments, slices, packers))
        plan, memory = draft.plan, draft.memory
        if table is None or not (full := _full(plan, memory, table)):
            if watch.drafts is not None:
                watch.drafts.append(draft)
            return plan, memory
        for name in full:
            price[name] = 8 * price.get(name, 1 / table.spec(name).bytes_per_ns) if left > 1 else _NEVER
        text = _too_large(plan, memory, table)
    raise OutOfMemoryError(text)


def _needed(plan: GraphPlan, memory: MemoryPlan, name: str) -> int:
    """Bytes that a plan allocates on a device: intermediates, and results and copies that are kept."""
    kept = sum(
        b.numel * b.dtype.size_bytes
        for b in plan.buffers
        if b.device == name and (b.is_output or b.is_kept) and b.slot is None
    )
    return memory.arena_bytes.get(name, 0) + kept


def _full(plan: GraphPlan, memory: MemoryPlan, table: DeviceTable) -> list[str]:
    """The devices that have too little memory for a plan."""
    return [spec.name for spec in table.specs if _needed(plan, memory, spec.name) > spec.limit_bytes]


def _too_large(plan: GraphPlan, memory: MemoryPlan, table: DeviceTable) -> str:
    lines = ["this graph does not fit.", f"{'':10} {'needed':>12} {'free':>12}"]
    for spec in table.specs:
        needed = _needed(plan, memory, spec.name)
        over = f"   <- {_mib(needed - spec.limit_bytes)} too much" if needed > spec.limit_bytes else ""
        lines.append(f"{spec.name:10} {_mib(needed):>12} {_mib(spec.limit_bytes):>12}{over}")
    lines.append("Name another device behind these in DEVICE, or compute with a smaller batch or dtype.")
    return "\n".join(lines)


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f} MiB" if size_bytes < 1 << 60 else "unlimited"
