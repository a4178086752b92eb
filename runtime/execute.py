"""Realize: close the graph over its data, schedule it, find memory, build programs, launch, check.

A graph of a structure seen before costs none of that again: everything but memory addresses is in its plan.
"""

from __future__ import annotations

import ctypes
import struct
import time
import weakref
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from kernmill.ir import (
    Copy,
    DType,
    Kernel,
    KernmillError,
    OpGroup,
    Ops,
    OutOfMemoryError,
    UOp,
    current_origin,
    dtypes,
    numel,
    process_lock,
    setting,
)

from . import later, recorder
from .device import Call, canonical_name, default_device, device_list, get_device, read_buffer, write_buffer
from .failed import check_failed, explained, failed_launch
from .lanes import LaneStep, open_lanes, settle
from .memory.allocator import Lease
from .memory.buffer import Arena, Buffer, Placeholder, buffer_node
from .pins import pinned_nodes
from .plans.families import find_plan, wants_exact
from .plans.graph_key import STALE, GraphWalk, next_realize
from .plans.plan import Plan, plans, runs_unseen, settings_key
from .plans.prepared import Prepared, prepare
from .plans.views import part_of, views
from .replay import check_values, copy_between, current_recording, download_scalar, is_to_be_recorded
from .tape import Lines
from .watch import sees_kernels, wants_report

__all__ = [
    "STALE", "Run", "allocate_buffer", "count_launch", "download", "fill", "launched_ns", "prepared_launches",
    "realize", "realizing", "take_over", "upload",
]  # fmt: skip

realizing = process_lock()
_kept: list[weakref.ref[UOp]] = []  # what loops keep for their next round
_launched = [0]  # ns in kernels, outside of replays


_NO_SLOTS: frozenset[int] = frozenset()
_NO_VALUES: Mapping[str, int] = {}
_NUMBER_BYTES = 8  # room for a number of any dtype
_CODES = {
    dtype: struct.Struct(code)
    for code, dtype in {
        "e": dtypes.float16, "f": dtypes.float32, "d": dtypes.float64, "b": dtypes.int8, "B": dtypes.uint8,
        "h": dtypes.int16, "H": dtypes.uint16, "i": dtypes.int32, "I": dtypes.uint32, "q": dtypes.int64,
        "Q": dtypes.uint64,
    }.items()
}  # fmt: skip


def allocate_buffer(device: str, dtype: DType, count: int, kind: type[Buffer] = Buffer) -> Buffer:
    """Memory for `count` values; contents are whatever was there. Raises OutOfMemoryError."""
    memory = get_device(device).allocator
    block = memory.alloc(max(1, count * dtype.size_bytes))
    return kind(device, dtype, count, Lease(block, memory.free), block.address)


def upload(array: Any, dtype: DType, device: str, *, borrow: bool = False) -> UOp:
    """A BUFFER node with the values of a 1-D C-contiguous NumPy array (bfloat16: as uint16).

    With `borrow`, a device that can works on the array's own memory; it is never written.
    """
    device = canonical_name(device)
    if borrow and get_device(device).limits.wraps_host_memory and array.ctypes.data % dtype.size_bytes == 0:
        return buffer_node(Buffer(device, dtype, array.size, array, array.ctypes.data, is_borrowed=True))
    buffer = allocate_buffer(device, dtype, array.size)
    buffer.is_borrowed = current_recording() is not None  # a replay reads these values again: never written in place
    fill(buffer, array)
    return buffer_node(buffer)


def fill(buffer: Buffer, array: Any) -> None:
    """Copy a 1-D C-contiguous NumPy array (bfloat16: as uint16) into a buffer of its size and dtype."""
    if not array.size:
        return
    start = time.perf_counter_ns() if recorder.active is not None else 0
    write_buffer(get_device(buffer.device), buffer, array.data.cast("B"))
    if start and (now := recorder.active) is not None:
        now.span("copy", f"host -> {buffer.device}", start, buffer.nbytes, current_origin.line)


def download(node: Any) -> Any:
    """The values of a realized node, or of what has its `storage` and `origin`, as a 1-D NumPy array (bfloat16: as
    uint16), a view where that is possible."""
    buffer: Buffer = node.storage
    if type(buffer) is Placeholder:
        raise KernmillError(buffer.message)
    if current_recording() is not None:
        raise KernmillError(
            "jit: the captured function reads values (numpy(), item(), a comparison in an if). A replay would repeat "
            "the values of the capture. Return the tensor and read it outside."
        )
    device = get_device(buffer.device)
    if (now := recorder.active) is None:
        return read_buffer(device, buffer)
    start = time.perf_counter_ns()
    device.synchronize()
    now.span("wait", f"for {device.name}", start)
    start = time.perf_counter_ns()
    found = read_buffer(device, buffer)
    now.span("copy", f"{device.name} -> host", start, buffer.nbytes, node.origin)
    return found


def realize(
    roots: Sequence[UOp], others: Callable[[], Iterable[UOp]] = tuple, variables: Mapping[str, int] | None = None
) -> Run | None:
    """Compute every root; afterwards its `storage` is the Buffer with its values, row-major. Return the run, unless
    all of them had their values.

    `others()` are the expressions of all other tensors that are alive: an assignment writes in place only when none of
    them needs the old value. `variables` gives each VARIABLE its value.

    Raises:
        IndexRangeError: a CHECK failed.
        DeviceError, OutOfMemoryError, CompileError: as their names say.
    """
    with realizing:
        pending = [root for root in roots if root.storage is None]
        if not pending:
            return None
        if len(pending) > 1:
            pending = list(dict.fromkeys(pending))
        try:
            number = next_realize()
            run = Run(pending, others, variables or _NO_VALUES, number)
            if run.walk.fresh and (parameters := run.parameters()):
                Run(parameters, others, run.variables, number).go()
                run = Run(pending, others, run.variables, number)
            if (record := current_recording()) is not None and record.on_realize is not None:
                record.on_realize(run.walk.storages)
            run.go()
            if run.again:
                release_passed(run.again, others())
        except OutOfMemoryError as error:
            if line := pending[0].origin:
                error.args = (f"{error} The memory was for what {line} computes.",)
            raise
        except KernmillError as error:
            explained(error)
            raise
        return run


class Run:
    """One realize."""

    def __init__(
        self, roots: list[UOp], others: Callable[[], Iterable[UOp]], variables: Mapping[str, int], number: int
    ) -> None:
        self.variables, self.is_recorded = variables, is_to_be_recorded()
        is_recorded, record = self.is_recorded, current_recording()
        is_exact = is_recorded and not (record is not None and record.shares_numbers)
        walk = GraphWalk(roots, {}, is_exact=is_exact or len(device_list()) > 1, realize=number)
        if walk.numbers and (Ops.COPY in walk.ops or len({s.device for s in walk.storages}) > 1):
            walk = GraphWalk(roots, {}, is_exact=True, realize=number)  # a number is on one device
        assigns: list[UOp] = []
        if Ops.ASSIGN in walk.ops:
            assigns = [n for n in walk.order if n.op is Ops.ASSIGN and n.storage is None]
            roots = list(dict.fromkeys([*roots, *_visible(assigns, others)]))
        self.again = held_again(walk, roots, others()) if walk.known and not is_recorded else []
        roots = [*roots, *self.again] if self.again else roots
        walk.roots = roots
        self.plain: GraphWalk | None = None if is_recorded or walk.is_exact else walk
        self.parts: dict[UOp, Buffer] = {}
        if Ops.SHRINK in walk.ops and not is_recorded:
            assigned = {id(leaf.storage) for node in assigns for leaf in _bottom(node)}
            found = views(walk.order, roots)
            self.parts = {node: part for node, part in found.items() if id(part.owner) not in assigned}
            if self.parts:
                self.plain = None if assigns else self.plain  # slots that are overwritten have other numbers there
                walk = GraphWalk(roots, self.parts, is_exact=walk.is_exact, realize=number)
        self.walk, self.roots = walk, roots
        self.in_place = self.overwritable(assigns, others) if assigns else _NO_SLOTS

    def parameters(self) -> list[UOp]:
        """Return the leaves of gradients with random or computed initial values. They are computed before all else, so
        that the first run of a model is the same graph as all later ones."""
        if self.is_recorded or self.walk.is_exact:
            return []
        with_data = _with_data(self.walk)
        return [node for node in self.walk.fresh if node in with_data and node not in self.roots]

    def overwritable(self, assigns: list[UOp], others: Callable[[], Iterable[UOp]]) -> frozenset[int]:
        """Slots of assigned leaves whose old values nobody else will read."""
        leaves = self.walk.leaves
        slots = {leaf: slot for slot, leaf in enumerate(leaves)}
        wanted = {id(leaf.storage): leaf for node in assigns for leaf in _bottom(node) if leaf in slots}
        mine = set(self.roots)  # by memory, not by node: equal expressions that were realized apart share theirs
        # what an expression reads of one of these roots is in memory afterwards, and not the old value below it
        for node in _above_memory((other for other in others() if other not in mine), mine) if wanted else ():
            wanted.pop(id(node.storage), None)
        used = [id(s) for s in self.walk.storages]
        return frozenset(
            slots[leaf] for leaf in wanted.values() if leaf.storage.is_ours and used.count(id(leaf.storage)) == 1
        )

    def needs_memory_alone(self) -> bool:
        """True if another graph of this structure can run by this plan, given the memory of its leaves."""
        plan, walk = self.plan, self.walk
        if len(self.roots) != 1 or self.parts or self.own or walk.numbers or walk.fresh or walk.is_exact:
            return False
        special = plan.numbers or plan.counts or plan.values or plan.bounds or plan.written or plan.graph.checks
        return not special and len(plan.graph.results) == 1

    def go(self) -> None:
        """Find the plan and memory, launch, and give results their memory."""
        self.plan = plan = self.find_plan()
        values = {**self.variables, **plan.values} if plan.values else self.variables
        if plan.bounds:
            check_values(plan.bounds, values)
        storages = self.storages(plan) if self.walk.numbers or plan.numbers else self.walk.storages
        prepared = prepared_launches(plan)
        self.own: dict[int, Buffer] = {}
        try:
            found = self.run(plan, None if self.parts else prepared, storages, values)
        except KeyboardInterrupt:
            self.abandon(plan)
            raise
        self.finish(plan, found)

    def run(self, plan: Plan, prepared: Prepared | None, storages: Sequence[Buffer], values: Mapping[str, int]) -> Any:
        """Launch everything. Returns the buffers by number, of prepared launches only the given and new ones."""
        if open_lanes and (plan.in_flight is None or plan.written):  # what is overwritten may be read in any lane
            settle(None if plan.written else {wanted.device for wanted in plan.graph.buffers})
        if prepared is not None:
            start = time.perf_counter_ns()
            found = prepared.run(storages, plan.counts, values, self.lines() if recorder.active is not None else None)
            count_launch(time.perf_counter_ns() - start)
            return found
        buffers = self.memory(plan, storages)
        self.launch(plan, buffers, values)
        return buffers

    def abandon(self, plan: Plan) -> None:
        """Mark overwritten leaves after a Ctrl-C: nobody knows how much of them was written."""
        for slot in plan.written:
            take_over(self.walk.leaves[slot])

    def lines(self) -> Lines:
        """The source lines of this run's nodes: another graph of equal structure may have made the plan."""
        return tuple([node.origin for node in self.walk.order])

    def key(self) -> tuple[Any, ...]:
        """The key of the plan."""
        settings = settings_key()
        pinned = pinned_nodes(node.origin for node in self.walk.order) if setting("PIN") else ()
        return self.walk.structure, self.walk.devices, self.in_place, settings, pinned

    def find_plan(self) -> Plan:
        """The plan. One that serves many graphs reads whole leaves: it knows where slices begin, and a key does not."""
        walk, parts = self.walk, self.parts
        plan = plans.get(self.key())
        if plan is not None and not self.outgrows(plan):
            return plan
        many = self.plain if plan is None else None
        if parts and many is not None:
            self.walk, self.parts = many, {}
            if (plan := plans.get(self.key())) is not None:
                return plan
        plan = find_plan(walk, many, self.in_place)
        if plan.numbers is None:
            self.walk, self.parts = walk, parts
        plans.put(self.key(), plan)
        return plan

    def outgrows(self, plan: Plan) -> bool:
        """True if a plan for many graphs is not the one for this graph.

        A recording has no values for its variables, and sizes that keep coming get exact kernels.
        """
        is_exact = self.is_recorded or self.walk.is_exact
        return (plan.numbers is not None and is_exact) or (bool(plan.counts) and wants_exact(plan))

    def storages(self, plan: Plan) -> list[Buffer]:
        """The memory of the leaves and of the numbers."""
        found, walked = self.walk.storages, self.walk.numbers
        numbers = walked if plan.numbers is None else [walked[n] if isinstance(n, int) else n for n in plan.numbers]
        if not numbers:
            return found
        home = found[0].device if found else default_device()
        return [*found, *number_buffers(home, numbers)]

    def memory(self, plan: Plan, storages: Sequence[Buffer]) -> list[Buffer]:
        """A buffer for each that the plan names."""
        arenas: dict[str, Buffer] = {}
        for device, size in plan.memory.arena_bytes.items() if not plan.counts else ():
            if size <= get_device(device).limits.max_alloc_bytes:
                with suppress(OutOfMemoryError):  # else each buffer has a separate block: smaller pieces may fit
                    arenas[device] = allocate_buffer(device, dtypes.uint8, size, Arena)
        buffers: list[Buffer] = []
        for number, wanted in enumerate(plan.graph.buffers):
            count = plan.counts[number] if plan.counts else wanted.numel
            if wanted.slot is not None:
                buffers.append(storages[wanted.slot])
            elif wanted.part is not None:
                whole, first = wanted.part
                buffers.append(part_of(buffers[whole], first, min(wanted.numel, buffers[whole].numel - first)))
            elif number in plan.memory.offsets and wanted.device in arenas:
                arena = arenas[wanted.device]
                address = arena.address + plan.memory.offsets[number]
                buffers.append(Buffer(wanted.device, wanted.dtype, count, arena, address))
            else:
                kept = self.kept(plan, number, buffers) if wanted.is_kept else None
                buffers.append(kept or allocate_buffer(wanted.device, wanted.dtype, count))
        of_parts = [n for n in plan.graph.results if buffers[n] in self.parts.values()]
        self.own = {n: allocate_buffer(buffers[n].device, buffers[n].dtype, buffers[n].numel) for n in of_parts}
        return buffers

    def kept(self, plan: Plan, number: int, buffers: Sequence[Buffer]) -> Buffer | None:
        """The copy of an input that an earlier run made. A recording needs the copy as a step of its own."""
        if self.is_recorded:
            return None
        copy = next(step for step in plan.steps if isinstance(step, Copy) and step.target == number)
        return buffers[copy.source].copy_on(plan.graph.buffers[number].device)

    def launch(self, plan: Plan, buffers: list[Buffer], values: Mapping[str, int]) -> None:
        """Run the items; kernels of one device that follow each other go as one batch. A long call over several
        devices goes to their lanes, and goes on after this returns."""
        steps: list[tuple[LaneStep, Callable[[], object]]] = []
        is_profiled = recorder.active is not None
        is_seen = wants_report() or setting("CHECK") or current_recording() is not None or is_profiled
        lines = self.lines() if is_profiled or self.is_recorded else None
        in_lanes = plan.in_flight is not None and plan.in_flight.timing.is_long and not is_seen
        for step in plan.steps:
            if isinstance(step, Copy):
                target, source = buffers[step.target], buffers[step.source]
                is_kept = plan.graph.buffers[step.target].is_kept
                if is_kept and not self.is_recorded and target.is_copy_of(source):
                    continue
                what = LaneStep(target.device, [source], [target])
                steps.append((what, partial(run_copy, target, source, is_ordered=in_lanes, is_kept=is_kept)))
                continue
            batch: list[tuple[Kernel, Call]] = []
            for kernel, program in step:
                given = tuple([values[name] for name, _, _ in kernel.variables])
                call = Call(program, tuple([buffers[n] for n in kernel.buffers]), given, program.threads)
                batch.append((kernel, call))
            numbers = {n: None for kernel, _ in step for n in kernel.buffers}
            outputs = {n for kernel, _ in step for n in kernel.outputs}
            what = LaneStep(step[0][0].device, [buffers[n] for n in numbers], [buffers[n] for n in outputs])
            steps.append((what, partial(run_batch, batch, values, lines)))
        if plan.in_flight is None or is_seen:
            run_all(steps)
        elif in_lanes:
            plan.in_flight.begin(steps, buffers)
        else:
            settle()
            plan.in_flight.timing.run(partial(run_all, steps), {what.device for what, _ in steps})

    def finish(self, plan: Plan, buffers: Any) -> None:
        """Give results their memory; raise where a check failed. `buffers` has those of results and checks."""
        checks = plan.graph.checks
        failed = [check.message for check in checks if download_scalar(buffers[check.buffer])] if checks else ()
        if (record := current_recording()) is not None:
            for check in checks:
                record.add_check(buffers[check.buffer], check.message)
        for slot in plan.written:
            take_over(self.walk.leaves[slot])
        for number, own in self.own.items():  # a result that is a part of other memory has its own
            copy_between(own, buffers[number])
            buffers[number] = own
        for root, number in zip(self.roots, plan.graph.results, strict=True):
            if not failed or root.op is Ops.ASSIGN:
                root.storage = buffers[number]
                buffers[number].makers.append(weakref.ref(root))
        if failed:
            raise check_failed(failed[0])


def held_again(walk: GraphWalk, roots: Sequence[UOp], held: Iterable[UOp]) -> list[UOp]:
    """The expressions that this walk computes again and that are worth keeping: those that a tensor holds, and what the
    new round of a loop reads of the last one. A backward pass computes again on purpose."""
    met = set(walk.known)
    known = met.difference(roots)
    if not known:
        return []
    bases = {_base(node) for node in held}
    newer = (node for node in walk.order if node.storage is None and node not in met)
    read = {_base(s) for node in newer for s in node.src if _owners(s)} & known
    if read and Ops.DETACH in walk.ops:
        read -= _with_history(walk)
    wanted = [node for node in walk.known if node in known and (node in bases or node in read)]
    if not wanted:
        return []
    grown = _grown(walk)
    lasting = _with_data(walk) | grown
    return [node for node in wanted if node in lasting and not _is_view(node, node in grown)]


def _owners(node: UOp) -> int:
    """How many tensors had this node, not only an expression: 0, 1, or 2 for more."""
    return node.was_named or _base(node).was_named


def _with_history(walk: GraphWalk) -> set[UOp]:
    """The nodes through which a gradient may reach a leaf."""
    found: set[UOp] = set()
    for node in walk.order:
        if node.arg is not None if node.op is Ops.DETACH else not found.isdisjoint(node.src):
            found.add(node)
    return found


def release_passed(kept: Iterable[UOp], expressions: Iterable[UOp]) -> None:
    """Free values that earlier rounds of a loop kept and that no expression reads any more. They can be computed
    again. `kept`: of this round; `expressions`: of all tensors."""
    _kept.extend(map(weakref.ref, kept))
    roots = (*expressions,)
    below = set(UOp(Ops.SINK, dtypes.void, roots).toposort(stop=lambda node: node.storage is not None))
    for node in [node for ref in _kept if (node := ref()) is not None and node not in below]:
        node.storage = None
    _kept[:] = [ref for ref in _kept if (node := ref()) is not None and node.storage is not None]


def _with_data(walk: GraphWalk) -> set[UOp]:
    """The nodes that depend on memory; the others depend on constants alone."""
    found: set[UOp] = set()
    for node in walk.order:
        if node.storage is not None or not found.isdisjoint(node.src):
            found.add(node)
    return found


def _grown(walk: GraphWalk) -> set[UOp]:
    """The nodes of a round of a loop: they read a tensor of an earlier realize than the one that met them first. Masks
    and other expressions that several tensors had are built again each time."""
    found: set[UOp] = set()
    for node in walk.order:
        if not found.isdisjoint(node.src) or any(
            0 < s.first_realize < node.first_realize and _owners(s) == 1 for s in node.src
        ):
            found.add(node)
    return found


def _base(node: UOp) -> UOp:
    """The node that has the values of this one in the same order."""
    while node.storage is None and node.op in (Ops.RESHAPE, Ops.DETACH):
        node = node.src[0]
    return node


def _is_view(node: UOp, is_grown: bool) -> bool:
    """True if the node only moves values that are in memory, and keeping them would repeat values, or save no round of
    a loop."""
    below, repeats = node, False
    while below.storage is None and (below.op.group is OpGroup.MOVEMENT or below.op is Ops.DETACH):
        repeats = repeats or below.op is Ops.EXPAND
        below = below.src[0]
    is_long = is_grown and not (repeats and numel(node.shape) > numel(below.shape))
    return below.storage is not None and not is_long


def number_buffers(device: str, numbers: Sequence[tuple[DType, float]]) -> list[Buffer]:
    """Memory for each of the Python numbers that kernels take."""
    stored = bytearray(_NUMBER_BYTES * len(numbers))
    for position, (dtype, value) in enumerate(numbers):
        _CODES[dtype].pack_into(stored, _NUMBER_BYTES * position, value)
    limits = get_device(device).limits
    whole: Any
    if limits.wraps_host_memory and not limits.is_async:
        whole = (ctypes.c_char * len(stored)).from_buffer(stored)
        first = ctypes.addressof(whole)
    else:
        whole = allocate_buffer(device, dtypes.uint8, len(stored))
        write_buffer(get_device(device), whole, memoryview(stored))
        first = whole.address
    steps = range(first, first + len(stored), _NUMBER_BYTES)
    return [
        Buffer(device, dtype, 1, whole, address, is_borrowed=True)
        for (dtype, _), address in zip(numbers, steps, strict=True)
    ]


def prepared_launches(plan: Plan) -> Prepared | None:
    """The launches of a plan in one table, unless something watches single kernels."""
    if not plan.prepared:
        plan.prepared.append(prepare(plan))
    prepared: Prepared | None = plan.prepared[0]
    if prepared is None or current_recording() is not None or sees_kernels() or not runs_unseen():
        return None
    return prepared


def take_over(node: UOp) -> None:
    """Mark a node whose memory gets other values: what was computed can be computed again, and reading anything else
    raises an error."""
    if isinstance(node.storage, Buffer):
        node.storage.forget_makers()
    node.storage = STALE if node.op is Ops.BUFFER else None


def count_launch(ns: int) -> None:
    """Add the time of launches to `launched_ns`."""
    _launched[0] += ns


def launched_ns() -> int:
    """Nanoseconds that kernels took so far (on devices that do not wait: their launches), outside of replays."""
    return _launched[0]


def run_batch(batch: list[tuple[Kernel, Call]], values: Mapping[str, int], lines: Lines) -> None:
    """Launch kernels of one device in order. `lines`: of this run's nodes, if they are wanted."""
    device, is_timed = get_device(batch[0][0].device), wants_report()
    if setting("CHECK") and device.name != "PYTHON":
        for kernel, call in batch:
            later.check.run_checked(device, kernel, call)
    else:
        start = time.perf_counter_ns()
        now, times = None if is_timed else recorder.active, list[int]()
        try:
            if now is None:
                times = device.run([call for _, call in batch], is_timed=is_timed)
            else:
                now.run(device, [call for _, call in batch], [kernel for kernel, _ in batch], values, lines)
        except Exception as error:  # whatever a device's own code raises
            raise failed_launch(device, error, [kernel for kernel, _ in batch]) from error
        _launched[0] += time.perf_counter_ns() - start
        if is_timed:
            later.kernel_report.report(device, [kernel for kernel, _ in batch], times, values)
    if (record := current_recording()) is not None:
        # the threads of now: a launch may have been refused, and its kernel been rebuilt with smaller groups
        record.add_kernels(
            device.name, [(replace(k, lines=lines), call._replace(threads=call.program.threads)) for k, call in batch]
        )


def run_all(steps: Sequence[tuple[LaneStep, Callable[[], object]]]) -> None:
    """Run steps one after the other."""
    for _, run in steps:
        run()


def run_copy(target: Buffer, source: Buffer, *, is_ordered: bool, is_kept: bool) -> None:
    """Copy between devices, as a step of a plan. `is_kept`: later runs may use the copy too."""
    copy_between(target, source, is_timed=wants_report(), is_ordered=is_ordered)
    if (record := current_recording()) is not None:
        record.add_copy(target, source, is_kept=is_kept)
    elif is_kept and not is_to_be_recorded():
        source.keep_copy(target)


def _above_memory(roots: Iterable[UOp], parts: Container[UOp] = ()) -> dict[UOp, int]:
    """The nodes of expressions, numbered, sources first; none below one in memory, or below such a part of memory."""
    found: dict[UOp, int] = {}
    path = [*roots][::-1]
    while path:
        node = path[-1]
        for s in node.src if node.storage is None and node not in parts else ():
            if s not in found:
                path.append(s)
                break
        else:
            found.setdefault(path.pop(), len(found))
    return found


def _visible(assigns: list[UOp], others: Callable[[], Iterable[UOp]]) -> list[UOp]:
    """The assignments whose value somebody may read: not those that another one overwrites, if no tensor has them."""
    overwritten = {base for node in assigns if (base := _base(node.src[0])).op is Ops.ASSIGN}
    held = {_base(node) for node in others()} if overwritten else overwritten
    return [node for node in assigns if node not in overwritten or node in held]


def _bottom(node: UOp) -> list[UOp]:
    """The leaf that an assignment overwrites in the end."""
    while node.storage is None and node.op in (Ops.ASSIGN, Ops.RESHAPE, Ops.DETACH, Ops.CONTIGUOUS):
        node = node.src[0]
    return [node] if node.storage is not None else []
