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

from .allocator import CachedBlock, Lease

__all__ = ["Arena", "Buffer", "buffer_node"]

_numbers = itertools.count(1)


class _Export:
    """An object that keeps a buffer alive for its NumPy views; it is alive while there is one."""

    def __init__(self, buffer: Buffer, interface: dict[str, Any]) -> None:
        self.buffer = buffer
        self.__array_interface__ = interface


class Buffer:
    """`numel` values of `dtype` on `device`."""

    __slots__ = ("__weakref__", "_export", "address", "device", "dtype", "is_borrowed", "makers", "numel", "owner")

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

    @property
    def block(self) -> Any:
        """The block of the device's `allocate`; None for memory that is not a device's."""
        owner = self.whole.owner
        block = owner.block if isinstance(owner, Lease) else None
        return block.own if isinstance(block, CachedBlock) else block

    def forget_makers(self) -> None:
        """Before other values are written here: make the expressions of the old values be computed again at the next
        use."""
        for maker in self.makers:
            node = maker()
            if node is not None and node.storage is self:
                node.storage = None
        self.makers.clear()

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


class Arena(Buffer):
    """Memory for the intermediates of one `realize`, which is never read afterwards."""

    __slots__ = ()


def buffer_node(buffer: Buffer, shape: Shape | None = None) -> UOp:
    """Return the BUFFER node of this memory for expressions; with `shape`, reshaped to it."""
    node = UOp(Ops.BUFFER, buffer.dtype, (), (next(_numbers), buffer.device, buffer.numel))
    node.storage = buffer
    return node if shape is None or shape == (buffer.numel,) else UOp(Ops.RESHAPE, buffer.dtype, (node,), shape)
