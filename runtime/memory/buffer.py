"""class Buffer: the memory of one tensor on one device.

A buffer owns a block of its device's allocator, borrows host memory, or is a slice of another buffer (a range of a
planned arena). Host memory is borrowed from a NumPy array that was imported without a copy. A block returns to the
allocator when its last buffer is gone.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

from kernmill.ir import DType, Ops, Shape, UOp, np

from .allocator import Block, CachedBlock, Lease, finishing

__all__ = ["Arena", "Buffer", "Placeholder", "buffer_node", "drop_copies"]

_numbers = itertools.count(1)


class _Export:
    """An object that keeps a buffer alive for its NumPy views; it is alive while there is one."""

    def __init__(self, buffer: Buffer, interface: dict[str, Any]) -> None:
        self.buffer = buffer
        self.__array_interface__ = interface


class BlockOnly:
    """The owner of a buffer that does not keep its memory alive: `block` is what `allocate` of its device returned."""

    __slots__ = ("block",)

    def __init__(self, block: Any) -> None:
        self.block = block


class Buffer:
    """`numel` values of `dtype` on `device`."""

    __slots__ = (
        "__weakref__", "_copies", "_export", "_holds", "_version", "address", "after", "device", "dtype", "is_borrowed",
        "is_state", "makers", "numel", "owner",
    )  # fmt: skip

    def __init__(
        self, device: str, dtype: DType, numel: int, owner: Any, address: int, *, is_borrowed: bool = False
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.numel = numel
        self.owner = owner  # keeps the memory alive: a Lease, the Buffer that this is a slice of, an array
        self.address = address  # of the first value, as kernels of the device see it
        self.is_borrowed = is_borrowed  # memory of the user: never written
        self.makers: list[weakref.ref[UOp]] = []  # nodes whose value is stored here
        self.is_state = False  # replays write it in place without `forget_makers`
        self._version = 0  # counts calls of `forget_makers`
        self._copies: dict[str, Buffer] | None = None  # on other devices
        self._holds: tuple[weakref.ref[Buffer], int] | None = None  # the buffer that this is a copy of, and its version
        self.after: Any = None  # the task that writes it (runtime/lanes.py); None once it was waited for
        self._export: weakref.ref[_Export] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return self.numel * self.dtype.size_bytes

    @property
    def whole(self) -> Buffer:
        """The buffer that this is a slice of, recursively; itself if it is not a slice."""
        found = self
        while isinstance(found.owner, Buffer):
            found = found.owner
        return found

    def wait(self) -> None:
        """Wait until the values are written. Raise the error of the task that writes them, if it failed."""
        whole = self.whole
        if whole.after is not None:
            whole.after.wait()
            whole.after = None

    @property
    def block(self) -> Any:
        """The block of the device's `allocate`; None for memory that is not a device's."""
        owner = self.whole.owner
        block = owner.block if isinstance(owner, Lease | BlockOnly) else None
        return block.own if isinstance(block, CachedBlock) else block

    def without_lease(self) -> Buffer:
        """Return a buffer at the same address that does not keep the memory alive."""
        block = self.block  # a block of host memory would keep it alive
        owner = None if block is None or type(block) is Block else BlockOnly(block)
        return Buffer(self.device, self.dtype, self.numel, owner, self.address)

    def forget_makers(self) -> None:
        """Call before new values are written: nodes whose value is stored here lose it and are recomputed when read."""
        self._version += 1
        self._copies = None
        for maker in self.makers:
            node = maker()
            if node is not None and node.storage is self:
                node.storage = None
        self.makers.clear()

    # --- copies on other devices, valid while the values do not change
    @property
    def is_steady(self) -> bool:
        """True if only writers that call `forget_makers` can change the values."""
        return not self.is_state and isinstance(self.whole.owner, Lease) and not self.is_exported

    def copy_on(self, device: str) -> Buffer | None:
        """Return the copy that is kept on a device, if it is still valid."""
        found = self._copies.get(device) if self._copies else None
        if found is None or found.device != device or not found.is_copy_of(self):  # a different name: of a lost device
            return None
        return found

    def keep_copy(self, target: Buffer) -> None:
        """Record that `target` is a copy of this buffer, and keep it while it is valid."""
        target.note_copy_of(self)
        if self.is_steady:
            self._copies = {**(self._copies or {}), target.device: target}
            _copied.add(self)

    def note_copy_of(self, source: Buffer) -> None:
        """Record that this is a copy of `source`. The caller guarantees that nothing else is written here."""
        self._holds = (weakref.ref(source), source._version) if source.is_steady else None

    def is_copy_of(self, source: Buffer) -> bool:
        """True if this is a copy of `source`, and `source` has not changed since."""
        holds = self._holds
        return holds is not None and holds[0]() is source and holds[1] == source._version and source.is_steady

    @property
    def is_exported(self) -> bool:
        """True if a NumPy view of this memory is alive: it must not be written in place."""
        return self._export is not None and self._export() is not None

    @property
    def is_ours(self) -> bool:
        """True if it is neither borrowed nor seen by a NumPy view. The caller checks which nodes still read it."""
        return not self.is_borrowed and not self.is_exported

    def host_array(self, address: int | None = None) -> np.ndarray[Any, np.dtype[Any]]:
        """A NumPy view, 1-D, without a copy; bfloat16 as uint16. Only for memory that the host can address. `address`:
        the host's address, if it differs from that of kernels."""
        export = None if self._export is None else self._export()  # one for all views: it dies with the last of them
        if export is None:
            export = _Export(self, {
                "version": 3, "shape": (self.numel,), "data": (address or self.address, False),
                "typestr": f"={self.dtype.stored_as[0]}{self.dtype.size_bytes}",  # np.dtype() looks it up
            })  # fmt: skip
            self._export = weakref.ref(export)
        return np.asarray(export)


_copied: weakref.WeakSet[Buffer] = weakref.WeakSet()


def drop_copies() -> None:
    """Release the memory of all kept copies: the next run makes them again."""
    for buffer in list(_copied):
        buffer._copies = None
    _copied.clear()


finishing.append(drop_copies)


class Placeholder(Buffer):
    """The argument of a function that is traced: no memory. Computing its value raises an error with `message`."""

    __slots__ = ("message",)

    def __init__(self, device: str, dtype: DType, numel: int, message: str) -> None:
        super().__init__(device, dtype, numel, None, 0, is_borrowed=True)
        self.message = message


class Arena(Buffer):
    """Memory for the intermediates of one `realize`, which is never read afterwards."""

    __slots__ = ()


def buffer_node(buffer: Buffer, shape: Shape | None = None) -> UOp:
    """Return a new BUFFER node for this memory, reshaped to `shape` if that is given."""
    node = UOp(Ops.BUFFER, buffer.dtype, (), (next(_numbers), buffer.device, buffer.numel))
    node.storage = buffer
    return node if shape is None or shape == (buffer.numel,) else UOp(Ops.RESHAPE, buffer.dtype, (node,), shape)
