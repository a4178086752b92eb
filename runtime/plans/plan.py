"""From a closed graph to a plan: kernels, memory and programs; plans are cached in memory and on disk.

Scheduling depends on the graph, the devices of its data, what may be overwritten, and the compiler's own sources: these
are the key on disk. A stored plan names its kernels by their digests, under which `build` finds their programs, and has
no UOps. If reports, searches or an evicted program need those, the graph is scheduled again.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from kernmill.ir import (
    BufferPlan,
    CheckItem,
    Copy,
    DeviceTable,
    GraphPlan,
    InternalError,
    Kernel,
    KernmillError,
    LazyModule,
    MemoryPlan,
    Ops,
    Origin,
    UOp,
    active_overrides,
    arg_text,
    as_dtype,
    broadcast_to,
    debug,
    dtypes,
    permute,
    reshape,
    setting,
)

from .. import later, watch
from ..device import Program, Properties, default_device, device_list, forgetting, get_device
from ..lanes import InFlight, lane_of
from ..pins import pinned_nodes
from ..programs.build import build_all, expect
from ..programs.compile_cache import cache_key, default_cache
from ..programs.schedules import stamp
from ..replay import narrow
from ..watch import is_quiet, wants_report
from .graph_key import Structure, is_number
from .stored_plan import check_plan

__all__ = ["Plan", "Plans", "closed", "new_plan", "plans", "runs_unseen", "settings_key"]

_json: Any = LazyModule("json")
_ENTRY_BYTES = 400  # of an entry of a key, with its references
_KERNEL_BYTES = 12_000  # of a kernel's plan and its loaded code
_Scheduled: TypeAlias = "tuple[GraphPlan, MemoryPlan]"
_PLAN_SETTINGS = ("DEVICE", "PLACE", "PIN", "OVERRIDE", "BEAM", "TRY", "TARGET", "CHECK")


class Plan(NamedTuple):
    """The cached plan of a graph structure."""

    graph: GraphPlan
    memory: MemoryPlan
    steps: list[Copy | list[tuple[Kernel, Program]]]  # adjacent kernels of one device run as one batch
    bounds: dict[str, tuple[int, int]]  # bounds of each variable
    written: list[int]  # slots that kernels write to
    prepared: list[Any]  # the launches in one table (runtime/plans/prepared.py), or None; empty before the first run
    cost_bytes: int  # an estimate of the memory that keeping the plan takes
    values: Mapping[str, int] = {}
    numbers: Sequence[Any] | None = None  # arguments of this run: positions in GraphWalk.numbers, or (dtype, value)
    counts: Sequence[int] = ()  # elements of each buffer, if sizes are symbolic
    uses: list[int] = []  # one number: runs with symbolic sizes so far  # noqa: RUF012
    in_flight: InFlight | None = None  # of a plan over several devices


class Plans:
    """Plans by key, the least recently used first. Their memory is limited, not their number."""

    def __init__(self) -> None:
        self.found: OrderedDict[Any, Plan] = OrderedDict()
        self.bytes = 0
        self.dropped = 0  # how often plans were dropped: who keeps plans of its own forgets them then

    def __len__(self) -> int:
        return len(self.found)

    def get(self, key: Any) -> Plan | None:
        """The plan with this key, which counts as used now."""
        plan = self.found.get(key)
        if plan is not None:
            self.found.move_to_end(key)
        return plan

    def put(self, key: Any, plan: Plan) -> None:
        """Keep a plan; drop others until all fit in the setting PLANS_MAX_MB."""
        before = self.found.pop(key, None)
        self.bytes += plan.cost_bytes - (before.cost_bytes if before is not None else 0)
        self.found[key] = plan
        while self.bytes > int(setting("PLANS_MAX_MB")) << 20 and len(self.found) > 1:
            self.bytes -= self.found.popitem(last=False)[1].cost_bytes
            self.dropped += 1

    def values(self) -> Iterable[Plan]:
        """All plans, the most recently used last."""
        return self.found.values()

    def clear(self) -> None:
        """Forget all plans."""
        self.dropped += 1
        self.found.clear()
        self.bytes = 0


plans = Plans()
forgetting.append(plans.clear)
# the last overrides of settings; values of the settings in a plan's key; True if nothing is printed or checked
_lately: list[Any] = [None, (), True]


def settings_key() -> tuple[Any, ...]:
    """The values of the settings that plans depend on."""
    overrides = active_overrides()
    if _lately[0] is not overrides or not _lately[1]:
        is_unseen = is_quiet() and not setting("CHECK")
        _lately[:] = overrides, tuple([setting(name) for name in _PLAN_SETTINGS]), is_unseen
    return _lately[1]  # type: ignore[no-any-return]


def runs_unseen() -> bool:
    """True if no setting asks for reports or checks of kernels, as of the last `settings_key` of this thread."""
    return _lately[2]  # type: ignore[no-any-return]


def new_plan(structure: Structure, nodes: Iterable[UOp], devices: tuple[str, ...], in_place: frozenset[int]) -> Plan:
    """The plan of a graph that `plans` does not have. Slots `in_place` may be overwritten; `nodes` know the user's
    lines.

    Raises:
        CompileError: a kernel cannot be built.
    """
    default = default_device()
    plan = _with_programs(
        *_scheduled((structure, devices, in_place), [node.origin for node in nodes], default), len(structure)
    )
    if wants_report():
        later.kernel_report.report_memory(plan.memory)
    return plan


def _with_programs(graph: GraphPlan, memory: MemoryPlan, entries: int) -> Plan:
    kernels = [item for item in graph.items if isinstance(item, Kernel)]
    for kernel in kernels:
        _check_devices(kernel, graph)
    built = iter(build_all([(get_device(kernel.device), kernel) for kernel in kernels]))
    steps: list[Copy | list[tuple[Kernel, Program]]] = []
    for key, items in groupby(graph.items, lambda item: item.device if isinstance(item, Kernel) else item):
        steps.append(key if isinstance(key, Copy) else [(k, next(built)) for k in items if isinstance(k, Kernel)])
    bounds: dict[str, tuple[int, int]] = {}
    narrow(bounds, (variable for kernel in kernels for variable in kernel.variables))
    outputs = {number for kernel in kernels for number in kernel.outputs}
    written = [b.slot for number, b in enumerate(graph.buffers) if number in outputs and b.slot is not None]
    cost = _ENTRY_BYTES * entries + _KERNEL_BYTES * len(kernels)
    lanes = {lane_of(buffer.device) for buffer in graph.buffers}
    return Plan(graph, memory, steps, bounds, written, [], cost, in_flight=InFlight() if len(lanes) > 1 else None)


def _share_memory(name: str, other: str) -> bool:
    """True if kernels of each device may use the memory of the other."""
    group = get_device(name).limits.group
    return bool(group) and group == get_device(other).limits.group


def _check_devices(kernel: Kernel, graph: GraphPlan) -> None:
    """Raise InternalError for a kernel with memory of another device, which would be an address of nothing there."""
    for number in kernel.buffers:
        device = graph.buffers[number].device
        if device != kernel.device and not _share_memory(device, kernel.device):
            line = f" ({kernel.origin})" if kernel.origin else ""
            raise InternalError(
                f"kernel {kernel.name}{line} on {kernel.device} reads or writes memory of {device}. A COPY is missing "
                "between them; the front puts it there for `.to(device)`."
            )


def closed(structure: Structure, origins: Sequence[str | None]) -> UOp:
    """Build the graph of a structure over PARAMs: those of leaves by slot, then one for each number.

    DETACHs are renumbered from 1, so that equal graphs are equal whatever was made before. A constant that a tensor
    holds as its own node is replaced where it is assigned: the plan would keep its memory alive, and expose it to the
    next call.
    """
    nodes, own, first, counted = list[UOp](), set[UOp](), len(structure) - len(origins), itertools.count(1)
    numbers = number_nodes(structure[first:])
    for number, (entry, origin) in enumerate(zip(structure[first:], origins, strict=True)):
        if isinstance(entry, UOp):
            node = entry
        elif isinstance(entry[0], int):
            node = reshape(UOp(Ops.PARAM, entry[1], (), entry[::3]), entry[2])
        elif is_number(entry):
            node = next(numbers)
        else:
            op, dtype, arg, *sources = entry
            src = tuple([nodes[number] for number in sources])
            if op is Ops.ASSIGN and src[0] in own:
                src = (UOp(Ops.DETACH, dtype, src[:1], 0), *src[1:])
            if op.is_elementwise:
                src = _broadcast(src)
            if op in (Ops.RESHAPE, Ops.PERMUTE):  # simplified: a tensor may hold this very node, with its memory
                node = reshape(src[0], arg) if op is Ops.RESHAPE else permute(src[0], arg)
            else:
                node = UOp(op, dtype, src, next(counted) if op is Ops.DETACH and arg else arg)
            if origin is not None:  # whatever graph had this node before
                node.origin = Origin.of(origin, number)
        if node.op is not Ops.PARAM and own.issuperset(node.src):
            own.add(node)
        nodes.append(node)
    return UOp(Ops.SINK, dtypes.void, tuple([nodes[number] for number in structure[:first]]))


def number_nodes(entries: Sequence[Any]) -> Iterator[UOp]:
    """Yield the numbers of a structure in order, each in a separate PARAM: equal layers have equal kernels."""
    slot = sum(bool(e.src) or e.op is Ops.PARAM if isinstance(e, UOp) else isinstance(e[0], int) for e in entries)
    for number, entry in enumerate(filter(is_number, entries)):
        yield reshape(UOp(Ops.PARAM, entry[1], (), (slot + number, 1)), ())


def _broadcast(src: tuple[UOp, ...]) -> tuple[UOp, ...]:
    """Return the sources of an elementwise op, with numbers in the shape of the others; constants need no EXPAND."""
    shape = next(filter(None, [s.shape for s in src]), ())
    if not shape or all(s.shape or s.op is Ops.CONST for s in src):
        return src
    return tuple([s if s.shape or s.op is Ops.CONST else broadcast_to(s, shape) for s in src])


def _text(structure: Structure) -> str:
    """A structure as text, equal in every process. Equal layers share their args."""
    texts = {number: arg_text(arg) for number, arg in {id(f[2]): f[2] for f in structure if type(f) is tuple}.items()}
    return "\n".join([
        f"{f[:2]}{texts[id(f[2])]}{arg_text(f[3:])}" if type(f) is tuple else arg_text(f) for f in structure
    ])  # fmt: skip


# --- on disk ---------------------------------------------------------------------------------------------------------
def _scheduled(of: tuple[Any, ...], origins: list[str | None], default: str) -> _Scheduled:
    structure, devices, in_place = of
    graph = cache(lambda: closed(structure, origins))
    listed = device_list()
    table = later.device_rates.device_table(devices, graph().toposort()) if len(listed) > 1 else None
    planned = cache(lambda: later.planning.planned(graph().src, devices, in_place, default, table))
    known = "" if table is None else table.text() + str(pinned_nodes(origins))
    facts = devices, sorted(in_place), default, _alignments(structure, {*devices, default, *listed})
    key = cache_key("plan", _text(structure), _json.dumps(facts), known, stamp())
    stored = default_cache("plans").get(key) if watch.drafts is None else None
    found: _Scheduled | None = None
    if stored is not None:
        with contextlib.suppress(
            ValueError, TypeError, LookupError, AttributeError, KernmillError
        ):  # of a different structure: rebuilt
            found = _read(stored.payload, planned, of, (default, *listed))
    if found is None:
        expect(graph(), {*devices, *listed} or {default})
        default_cache("plans").put(key, _written(*planned()), {"name": "plan"})
        found = planned()
    if table is not None:
        if debug() or watch.placed is not None:
            _note_placement(planned()[0], table)
        else:
            found[0].placement = None  # nobody asks, and it holds the whole graph
    return found


def _note_placement(graph: GraphPlan, table: DeviceTable) -> None:
    """Keep or print how a new graph was placed."""
    if watch.placed is not None:
        watch.placed.append((graph, table))
    else:
        print("\n".join(later.placement_report.placement_lines(graph, table, most_reasons=1)), file=sys.stderr)


def _alignments(structure: Structure, devices: set[str]) -> list[tuple[str, int, int]]:
    """Return the alignments of devices that need more than the default: memory plans depend on them."""
    devices |= {entry[2] for entry in structure if type(entry) is tuple and entry[0] is Ops.COPY}
    limits = [(name, get_device(name).limits) for name in sorted(devices)]
    found = [(name, limit.alignment, limit.slice_alignment) for name, limit in limits]
    return [row for row in found if row[1:] != (Properties().alignment, Properties().slice_alignment)]


def _written(graph: GraphPlan, memory: MemoryPlan) -> bytes:
    items = [(i.buffers, i.outputs, i.device, i.key.hex(), i.name, i.variables) if isinstance(i, Kernel)
             else (i.source, i.target) for i in graph.items]  # fmt: skip
    buffers = [
        (b.dtype.name, b.numel, b.device, b.slot, b.is_output, b.part, b.extent, b.is_kept) for b in graph.buffers
    ]
    checks = [(check.buffer, check.message) for check in graph.checks]
    sizes = memory.arena_bytes, memory.lower_bound_bytes, memory.unplanned_bytes
    return str(_json.dumps([items, buffers, graph.results, checks, [*memory.offsets.items()], *sizes])).encode()


def _read(payload: bytes, planned: Callable[[], Any], of: tuple[Any, ...], others: Sequence[str]) -> _Scheduled:
    plan = _json.loads(payload)
    check_plan(plan, of[1], others, sum(type(form) is int for form in of[0]))
    items, buffers, results, checks, offsets, *sizes = plan

    def kernel(place: int, buffers: list[int], outputs: list[int], device: str, *facts: Any) -> Kernel:
        key, name, variables = facts
        known = device, bytes.fromhex(key), name, tuple(tuple(variable) for variable in variables)
        return Kernel(lambda: planned()[0].items[place].made(), tuple(buffers), tuple(outputs), *known)

    graph = GraphPlan(
        [kernel(place, *row) if len(row) > 2 else Copy(*row) for place, row in enumerate(items)],
        [BufferPlan(as_dtype(name), *rest) for name, *rest in buffers],
        results,
        [CheckItem(*check) for check in checks],
    )
    return graph, MemoryPlan(dict(offsets), *sizes)
