"""Memory that a replay needs only while it runs: it is taken at the start, given back at the end, and so shared.

Intermediates live within one `realize`, in its arena. A capture that kept its arenas would hold them between its calls:
four captures with 4 MiB of intermediates each would take 16 MiB. The caching allocator mostly gives the same block
again; then no address has to be written. To take a block costs two microseconds. So a device whose memory the host
sees does it for arenas that exceed its L2 cache, which no kernel gets through in that time. Tests:
tests/runtime/test_scratch.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kernmill.ir import dtypes

from .device import Batch, Device, get_device
from .memory.allocator import Lease
from .memory.buffer import Arena, Buffer

__all__ = ["Scratch", "is_shared", "scratch_of"]


class Scratch:
    """The arenas of one device in a replay, all in the same block: they are used one after the other."""

    def __init__(self, device: Device, arenas: Sequence[Arena]) -> None:
        largest = max(arenas, key=lambda arena: arena.numel)
        self.device = device
        self.arena = Buffer(device.name, dtypes.uint8, largest.numel, largest.owner, largest.address)
        self._moved: list[tuple[Buffer, int]] = []  # buffers and their offsets in the arena
        self._binders: list[tuple[Callable[[Buffer], object], Buffer]] = []
        self._is_bound = False
        self._block: object = None  # an owner of the arena between runs

    def inside(self, buffer: Buffer) -> Buffer:
        """The stand-in of a recorded buffer."""
        offset = buffer.address - buffer.whole.address
        made = Buffer(buffer.device, buffer.dtype, buffer.numel, self.arena, self.arena.address + offset)
        self._moved.append((made, offset))
        return made

    def bind(self, batch: Batch, entry: int, slot: int, buffer: Buffer) -> None:
        """Slot `slot` of call `entry` has this address inside the arena in all runs to come."""
        self._binders.append((batch.binder(entry, slot), buffer))

    def take(self) -> None:
        """Memory for the arena. Raises OutOfMemoryError."""
        memory, arena = self.device.allocator, self.arena
        block = memory.alloc(max(1, arena.numel))
        arena.owner = Lease(block, memory.free)
        if block.address != arena.address or not self._is_bound:
            self._is_bound = True
            arena.address = block.address
            for buffer, offset in self._moved:
                buffer.address = block.address + offset
            for bind, buffer in self._binders:
                bind(buffer)
            self._block = arena.without_lease().owner

    def give_back(self) -> None:
        """Others may have the memory from here on: a device runs in order, so its work need not be done."""
        self.arena.owner = self._block


def scratch_of(buffers: Iterable[Buffer]) -> tuple[list[Scratch], dict[int, tuple[Scratch, Buffer]]]:
    """The arenas of recorded buffers that are worth sharing; by id of a buffer inside: its Scratch and its stand-in."""
    inside: dict[str, list[Buffer]] = {}
    for buffer in buffers:
        if isinstance(buffer.whole, Arena) and is_shared(buffer.whole):
            inside.setdefault(buffer.device, []).append(buffer)
    made = {name: Scratch(get_device(name), [b.whole for b in found]) for name, found in inside.items()}  # type: ignore[misc]
    found = {id(b): (made[name], made[name].inside(b)) for name, some in inside.items() for b in some}
    return [*made.values()], found


def is_shared(arena: Buffer) -> bool:
    """True if the memory of an arena is worth giving back between two runs."""
    device = get_device(arena.device)
    return not device.limits.is_host_visible or arena.numel > device.target.l2_bytes
