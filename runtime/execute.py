"""Realize: close the graph over its data, schedule it, find memory, build programs, launch, check.

A graph of a structure seen before costs none of that again: everything but memory addresses is in its plan.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from kernmill.ir import Copy, DType, IndexRangeError, Kernel, KernmillError, Ops, UOp, dtypes, process_lock, setting

from . import later
from .allocator import Lease
from .buffer import Buffer, buffer_node
from .device import Call, canonical_name, get_device
from .plan import Plan, plan_of
from .replay import check_values, copy_between, current_recording, download_scalar, is_to_be_recorded
from .views import opened, part_of, views
from .watch import wants_report

__all__ = ["STALE", "allocate_buffer", "download", "launched_ns", "realize", "take_over", "upload"]

_lock = process_lock()
_launched = [0]  # ns in kernels, outside of replays


STALE: Any = SimpleNamespace(device="nowhere")
"""In place of the storage of a node whose memory an assignment took over."""


def allocate_buffer(device: str, dtype: DType, count: int) -> Buffer:
    """Memory for `count` values; contents are whatever was there. Raises OutOfMemoryError."""
    place = get_device(device)
    block = place.allocate(max(1, count * dtype.size_bytes))
    return Buffer(device, dtype, count, Lease(block, place.free), block.address)


def upload(array: Any, dtype: DType, device: str, *, borrow: bool = False) -> UOp:
    """A BUFFER node with the values of a 1-D C-contiguous NumPy array (bfloat16: as uint16).

    With `borrow`, a device that can works on the array's own memory; it is never written.
    """
    device = canonical_name(device)
    if borrow and get_device(device).limits.wraps_host_memory and array.ctypes.data % dtype.size_bytes == 0:
        return buffer_node(Buffer(device, dtype, array.size, array, array.ctypes.data, is_borrowed=True))
    buffer = allocate_buffer(device, dtype, array.size)
    buffer.is_borrowed = current_recording() is not None  # a replay reads these values again: never written in place
    if array.size:
        get_device(device).copy_in(buffer, array.data.cast("B"))
    return buffer_node(buffer)


def download(node: UOp) -> Any:
    """The values of a realized node as a 1-D NumPy array (bfloat16: as uint16), a view where that is possible."""
    buffer: Buffer = node.storage
    if current_recording() is not None:
        raise KernmillError(
            "jit: the captured function reads values (numpy(), item(), a comparison in an if). A replay would repeat "
            "the values of the capture. Return the tensor and read it outside."
        )
    return get_device(buffer.device).host_array(buffer)


def realize(
    roots: Sequence[UOp], others: Callable[[], Iterable[UOp]] = tuple, variables: Mapping[str, int] | None = None
) -> None:
    """Compute every root; afterwards its `storage` is the Buffer with its values, row-major.

    `others()` are the expressions of all other tensors that are alive: an assignment writes in place only when none of
    them needs the old value. `variables` gives each VARIABLE its value.

    Raises:
        IndexRangeError: a CHECK failed.
        DeviceError, OutOfMemoryError, CompileError: as their names say.
    """
    with _lock:
        pending = list(dict.fromkeys(root for root in roots if root.storage is None))
        if pending:
            _Run(pending, others, dict(variables or {})).go()


class _Run:
    """One realize."""

    def __init__(self, roots: list[UOp], others: Callable[[], Iterable[UOp]], variables: dict[str, int]) -> None:
        self.order = order = _above_memory(roots)
        leaves = [node for node in order if node.storage is not None]
        ops = [node.op for node in order]
        assigns = [n for n in order if n.op is Ops.ASSIGN and n.storage is None] if Ops.ASSIGN in ops else []
        self.roots = list(dict.fromkeys([*roots, *assigns])) if assigns else roots
        self.variables = variables
        if STALE in [leaf.storage for leaf in leaves]:
            raise KernmillError(
                "this expression reads a tensor as it was before an assignment took over its memory. "
                "Realize the expression before assigning, or keep the old values with .clone()."
            )
        self.parts: dict[UOp, Buffer] = {}
        if Ops.SHRINK in ops and not is_to_be_recorded():
            assigned = {id(leaf.storage) for node in assigns for leaf in _bottom(node)}
            found = views(order, self.roots)
            self.parts = {node: part for node, part in found.items() if id(part.owner) not in assigned}
            self.order = _above_memory(self.roots, self.parts)
        self.leaves = [*leaves, *self.parts]
        self.storages: list[Buffer] = [leaf.storage for leaf in leaves] + [*self.parts.values()]
        self.in_place = self.overwritable(assigns, others) if assigns else frozenset[int]()

    def overwritable(self, assigns: list[UOp], others: Callable[[], Iterable[UOp]]) -> frozenset[int]:
        """Slots of assigned leaves whose old values nobody else will read."""
        slots = {leaf: slot for slot, leaf in enumerate(self.leaves)}
        wanted = {id(leaf.storage): leaf for node in assigns for leaf in _bottom(node) if leaf in slots}
        mine = set(self.roots)  # by memory, not by node: equal expressions that were realized apart share theirs
        for node in _above_memory(other for other in others() if other not in mine) if wanted else ():
            wanted.pop(id(node.storage), None)
        used = [id(s) for s in self.storages]
        return frozenset(
            slots[leaf] for leaf in wanted.values() if leaf.storage.is_ours and used.count(id(leaf.storage)) == 1
        )

    def go(self) -> None:
        plan = plan_of(self.structure(), self.order, tuple([s.device for s in self.storages]), self.in_place)
        check_values(plan.bounds, self.variables)
        buffers = self.memory(plan)
        self.launch(plan, buffers)
        self.finish(plan, buffers)

    def structure(self) -> tuple[Any, ...]:
        """What tells this graph from others, and holds nothing of this run: the numbers of its roots, then each node:
        a leaf as slot, dtype, shape and size, others with the numbers of their sources. Nodes stand for constants and
        for parts of memory."""
        order, slots = self.order, {leaf: slot for slot, leaf in enumerate(self.leaves)}
        found: list[Any] = [order[root] for root in self.roots]
        for node in order:
            if (slot := slots.get(node)) is not None:
                leaf = slot, node.dtype, node.shape, self.storages[slot].numel
                found.append(opened(node, UOp(Ops.PARAM, node.dtype, (), leaf[::3])) if node in self.parts else leaf)
            else:
                arg = node.arg and 1 if node.op is Ops.DETACH else node.arg  # leaves are counted, as in `closed`
                found.append((node.op, node.dtype, arg, *[order[s] for s in node.src]) if node.src else node)
        return tuple(found)

    def memory(self, plan: Plan) -> list[Buffer]:
        arenas = {
            device: allocate_buffer(device, dtypes.uint8, size)
            for device, size in plan.memory.arena_bytes.items()
            if size <= get_device(device).limits.max_alloc_bytes  # else each buffer has a block of its own
        }
        buffers: list[Buffer] = []
        for number, wanted in enumerate(plan.graph.buffers):
            if wanted.slot is not None:
                buffers.append(self.storages[wanted.slot])
            elif wanted.part is not None:
                buffers.append(part_of(buffers[wanted.part[0]], wanted.part[1], wanted.numel))
            elif number in plan.memory.offsets and wanted.device in arenas:
                arena = arenas[wanted.device]
                address = arena.address + plan.memory.offsets[number]
                buffers.append(Buffer(wanted.device, wanted.dtype, wanted.numel, arena, address))
            else:
                buffers.append(allocate_buffer(wanted.device, wanted.dtype, wanted.numel))
        of_parts = [n for n in plan.graph.results if buffers[n] in self.parts.values()]
        self.own = {n: allocate_buffer(buffers[n].device, buffers[n].dtype, buffers[n].numel) for n in of_parts}
        return buffers

    def launch(self, plan: Plan, buffers: list[Buffer]) -> None:
        """Run the items; kernels of one device that follow each other go as one batch."""
        for step in plan.steps:
            if isinstance(step, Copy):
                copy_between(buffers[step.target], buffers[step.source])
                if (record := current_recording()) is not None:
                    record.add_copy(buffers[step.target], buffers[step.source])
                continue
            batch: list[tuple[Kernel, Call]] = []
            for kernel, program in step:
                values = tuple([self.variables[name] for name, _, _ in kernel.variables])
                call = Call(program, tuple([buffers[n] for n in kernel.buffers]), values, program.threads)
                batch.append((kernel, call))
            run_batch(batch)

    def finish(self, plan: Plan, buffers: list[Buffer]) -> None:
        failed = [check.message for check in plan.graph.checks if download_scalar(buffers[check.buffer])]
        if (record := current_recording()) is not None:
            for check in plan.graph.checks:
                record.add_check(buffers[check.buffer], check.message)
        for slot in plan.written:
            take_over(self.leaves[slot])
        for number, own in self.own.items():  # a result that is a part of other memory has its own
            copy_between(own, buffers[number])
            buffers[number] = own
        for root, number in zip(self.roots, plan.graph.results, strict=True):
            if not failed or root.op is Ops.ASSIGN:
                root.storage = buffers[number]
                buffers[number].makers.append(weakref.ref(root))
        if failed:
            raise IndexRangeError(failed[0])


def take_over(node: UOp) -> None:
    """Its memory gets other values: what was computed can be computed again, and who reads anything else is told."""
    if isinstance(node.storage, Buffer):
        node.storage.forget_makers()
    node.storage = STALE if node.op is Ops.BUFFER else None


def launched_ns() -> int:
    """Nanoseconds that kernels took so far (on devices that do not wait: their launches), outside of replays."""
    return _launched[0]


def run_batch(batch: list[tuple[Kernel, Call]]) -> None:
    """Launch kernels of one device in order."""
    device, is_timed = get_device(batch[0][0].device), wants_report()
    if setting("CHECK") and device.limits.is_host_visible and device.name != "PYTHON":
        for kernel, call in batch:
            later.check.run_checked(device, kernel, call)
    else:
        start = time.perf_counter_ns()
        times = device.run([call for _, call in batch], is_timed=is_timed)
        _launched[0] += time.perf_counter_ns() - start
        if is_timed:
            later.profile.report(device, [kernel for kernel, _ in batch], times)
    if (record := current_recording()) is not None:
        # the threads of now: a launch may have been refused, and its kernel been made anew with smaller groups
        record.add_kernels(device.name, [(k, call._replace(threads=call.program.threads)) for k, call in batch])


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


def _bottom(node: UOp) -> list[UOp]:
    """The leaf that an assignment overwrites in the end."""
    while node.storage is None and node.op in (Ops.ASSIGN, Ops.RESHAPE, Ops.DETACH, Ops.CONTIGUOUS):
        node = node.src[0]
    return [node] if node.storage is not None else []
