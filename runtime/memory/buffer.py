"""class Buffer: the memory of one tensor on one device.

A buffer owns a block of its device's allocator, borrows host memory, or is a slice of another buffer (a range of a
planned arena). Borrowed is the memory of a NumPy array that was imported without a copy. A block is returned after its
last buffer.
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
    """The owner of a buffer that does not keep its memory: the block object of its device's `allocate`."""

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
        self.owner = owner  # lives as long as the memory: a Lease, the Buffer that this is a piece of, an array
        self.address = address  # of the first value, as kernels of the device see it
        self.is_borrowed = is_borrowed  # somebody else's memory: never written
        self.makers: list[weakref.ref[UOp]] = []  # expressions whose value was put here
        self.is_state = False  # replays write it in place, and tell nobody
        self._version = 0  # how often others wrote it
        self._copies: dict[str, Buffer] | None = None  # on other devices
        self._holds: tuple[weakref.ref[Buffer], int] | None = None  # the buffer that this is a copy of, and its version
        self.after: Any = None  # the task that writes it (runtime/lanes.py), until somebody waited for that
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
        """Return when the values are there. Raises the error of the task that was to write them."""
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
        """The same memory, which this one does not keep."""
        block = self.block  # one of the host's is the memory itself
        owner = None if block is None or type(block) is Block else BlockOnly(block)
        return Buffer(self.device, self.dtype, self.numel, owner, self.address)

    def forget_makers(self) -> None:
        """Before other values are written here: make the expressions of the old values be computed again at the next
        use."""
        self._version += 1
        self._copies = None
        for maker in self.makers:
            node = maker()
            if node is not None and node.storage is self:
                node.storage = None
        self.makers.clear()

    # --- copies on other devices that serve as long as the values stay
    @property
    def is_steady(self) -> bool:
        """True if its values stay until `forget_makers`: nobody else can write here."""
        return not self.is_state and isinstance(self.whole.owner, Lease) and not self.is_exported

    def copy_on(self, device: str) -> Buffer | None:
        """The kept copy on a device, if it is still right."""
        found = self._copies.get(device) if self._copies else None
        if found is None or found.device != device or not found.is_copy_of(self):  # another name: of a lost device
            return None
        return found

    def keep_copy(self, target: Buffer) -> None:
        """Note that `target` has the values of this buffer, and keep it as long as they stay."""
        target.note_copy_of(self)
        if self.is_steady:
            self._copies = {**(self._copies or {}), target.device: target}
            _copied.add(self)

    def note_copy_of(self, source: Buffer) -> None:
        """Note whose values were copied here; nobody else writes here from now on."""
        self._holds = (weakref.ref(source), source._version) if source.is_steady else None

    def is_copy_of(self, source: Buffer) -> bool:
        """True if it was copied from there, and both have the values of then."""
        holds = self._holds
        return holds is not None and holds[0]() is source and holds[1] == source._version and source.is_steady

    @property
    def is_exported(self) -> bool:
        """True if a NumPy view of this memory is alive: it must not be written in place."""
        return self._export is not None and self._export() is not None

    @property
    def is_ours(self) -> bool:
        """True if it may be written in place, as far as the memory itself can tell."""
        return not self.is_borrowed and not self.is_exported

    def host_array(self, address: int | None = None) -> np.ndarray[Any, np.dtype[Any]]:
        """A NumPy view, 1-D, without a copy; bfloat16 as uint16. Only for memory that the host can address, at
        `address` where that is not the one that kernels know."""
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
    """Give back the memory of all kept copies: the next run makes them again."""
    for buffer in list(_copied):
        buffer._copies = None
    _copied.clear()


finishing.append(drop_copies)


class Placeholder(Buffer):
    """The argument of a function that is traced: no memory. Whoever computes from it gets the error `message`."""

    __slots__ = ("message",)

    def __init__(self, device: str, dtype: DType, numel: int, message: str) -> None:
        super().__init__(device, dtype, numel, None, 0, is_borrowed=True)
        self.message = message


class Arena(Buffer):
    """Memory for the intermediates of one `realize`, which is never read afterwards."""

    __slots__ = ()


def buffer_node(buffer: Buffer, shape: Shape | None = None) -> UOp:
    """Return the BUFFER node of this memory for expressions; with `shape`, reshaped to it."""
    node = UOp(Ops.BUFFER, buffer.dtype, (), (next(_numbers), buffer.device, buffer.numel))
    node.storage = buffer
    return node if shape is None or shape == (buffer.numel,) else UOp(Ops.RESHAPE, buffer.dtype, (node,), shape)
