"""A plan's launches with their arguments in the device's own table: a run sets addresses, then makes one native call.

Only plans of one device with a table of plain addresses have one, and only those without chains
(runtime/chains.py), which depend on the addresses. All other plans are launched step by step (runtime/execute.py).
Tests: tests/runtime/plans/test_prepared.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from kernmill.ir import Copy, DType, Kernel

from .. import recorder
from ..device import Batch, Call, batch_of, get_device
from ..memory.allocator import Lease
from ..memory.buffer import Buffer
from .plan import Plan

__all__ = ["Prepared", "prepare"]

_Addresses: TypeAlias = "list[tuple[Any, int]]"  # arrays, and the positions in them where one address is written


def prepare(plan: Plan) -> Prepared | None:
    """The launches of a plan in one table; None if the plan needs more than that."""
    if len(plan.steps) != 1 or isinstance(plan.steps[0], Copy):
        return None
    kernels, graph = plan.steps[0], plan.graph
    name = kernels[0][0].device
    device = get_device(name)
    if device.limits.is_async or any(wanted.device != name for wanted in graph.buffers):
        return None
    if any(wanted.numel * wanted.dtype.size_bytes > device.limits.max_alloc_bytes for wanted in graph.buffers):
        return None  # allocation refuses it; such sizes may not fit the words of a table
    unbound = [Buffer(name, wanted.dtype, wanted.numel, None, 0) for wanted in graph.buffers]  # runs give addresses
    for wanted, made in zip(graph.buffers, unbound, strict=True):
        if wanted.part is not None:  # for profiles
            made.owner, made.address = unbound[wanted.part[0]], wanted.part[1] * wanted.dtype.size_bytes
    calls = [
        Call(program, tuple([unbound[n] for n in kernel.buffers]), (0,) * len(kernel.variables), program.threads)
        for kernel, program in kernels
    ]
    batch = batch_of(device, calls)
    if batch.is_chained:
        return None
    addresses: list[_Addresses] = [[] for _ in graph.buffers]
    variables: dict[str, list[tuple[int, int]]] = {}
    for entry, (kernel, _) in enumerate(kernels):
        for slot, number in enumerate(kernel.buffers):
            if (found := batch.place(entry, slot)) is None:
                return None
            addresses[number].append(found)
        for number, (variable, _, _) in enumerate(kernel.variables):
            variables.setdefault(variable, []).append((entry, number))
    setters = {variable: batch.setter(positions) for variable, positions in variables.items()}
    return Prepared(plan, batch, addresses, setters)


class Prepared:
    """The table of a plan, for one run at a time."""

    __slots__ = ("arena", "batch", "device", "given", "inner", "kernels", "launch", "memory", "new", "parts", "setters")

    def __init__(
        self,
        plan: Plan,
        batch: Batch,
        addresses: Sequence[_Addresses],
        setters: Mapping[str, Callable[[int], object]],
    ) -> None:
        device = batch.device
        self.device, self.memory, self.launch, self.setters = device.name, device.allocator, batch.run, setters
        self.batch, self.kernels = batch, tuple([item for item in plan.graph.items if isinstance(item, Kernel)])
        size = plan.memory.arena_bytes.get(device.name, 0)
        self.arena = size if size <= device.limits.max_alloc_bytes and not plan.counts else 0
        self.given: list[tuple[int, int, _Addresses]] = []  # number, slot
        self.inner: list[tuple[int, int, _Addresses]] = []  # number, offset in the arena
        self.new: list[tuple[int, DType, int, _Addresses]] = []  # number, dtype, values
        self.parts: list[tuple[int, int, _Addresses]] = []  # the whole's number, offset in bytes
        for number, (wanted, at) in enumerate(zip(plan.graph.buffers, addresses, strict=True)):
            if wanted.slot is not None:
                self.given.append((number, wanted.slot, at))
            elif wanted.part is not None:
                self.parts.append((wanted.part[0], wanted.part[1] * wanted.dtype.size_bytes, at))
            elif self.arena and number in plan.memory.offsets:
                self.inner.append((number, plan.memory.offsets[number], at))
            else:
                self.new.append((number, wanted.dtype, wanted.numel, at))

    def run(
        self,
        storages: Sequence[Buffer],
        counts: Sequence[int],
        values: Mapping[str, int],
        lines: Sequence[str | None] | None = None,
    ) -> dict[int, Buffer]:
        """Launch everything. Returns the given and the new buffers by number; `counts` are values of each, by number,
        where they differ from the plan's; `lines` are for a profile."""
        found: dict[int, Buffer] = {}
        where: dict[int, int] = {}
        for number, slot, at in self.given:
            found[number] = buffer = storages[slot]
            where[number] = address = buffer.address
            for array, position in at:
                array[position] = address
        arena = self.memory.alloc(self.arena) if self.arena else None
        begin = 0 if arena is None else arena.address
        for number, offset, at in self.inner:
            where[number] = address = begin + offset
            for array, position in at:
                array[position] = address
        for number, dtype, count, at in self.new:
            found[number] = buffer = self._new(dtype, counts[number] if counts else count)
            where[number] = address = buffer.address
            for array, position in at:
                array[position] = address
        for whole, offset, at in self.parts:
            for array, position in at:
                array[position] = where[whole] + offset
        for name, give in self.setters.items():
            give(values[name])
        try:
            if (now := recorder.active) is None:
                self.launch()
            else:
                now.launch(self.batch, self.kernels, values, lines)
        finally:
            if arena is not None:
                self.memory.free(arena)
        return found

    def _new(self, dtype: DType, count: int) -> Buffer:
        block = self.memory.alloc(max(1, count * dtype.size_bytes))
        return Buffer(self.device, dtype, count, Lease(block, self.memory.free), block.address)
