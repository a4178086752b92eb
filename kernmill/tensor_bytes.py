"""Tensors over the little-endian bytes of files, and the bytes of tensors; pickling them."""

from __future__ import annotations

import copyreg
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

from kernmill.ir import DType, dtypes, reshape
from kernmill.runtime import Buffer, WeightArena, allocate_buffer, buffer_node, current_recording, get_device, upload

from .lazy import device_name
from .tensor import Tensor, _stored

__all__ = ["bytes_of", "host_memory", "in_new_memory", "joined_in_memory", "tensor_over", "tensor_within"]


def tensor_over(
    values: memoryview, dtype: DType, shape: Sequence[int], device: str | None = None, *, borrow: bool = True
) -> Tensor:
    """Return a tensor of these bytes, row-major. On a device with host memory it uses these bytes without a copy, and
    they must not change, unless they are not aligned or `borrow` is False. The caller ensures that bools are 0 or 1.
    """
    import numpy as np

    stored = np.dtype(dtype.stored_as)
    raw: Any = np.frombuffer(values, np.uint8)
    if raw.ctypes.data % stored.itemsize:
        raw = raw.copy()
    array = raw.view(stored.newbyteorder("<")).astype(stored, copy=False)
    name = device_name(device)
    return Tensor._make(reshape(upload(array, dtype, name, borrow=borrow), tuple(shape)), name)


def tensor_within(whole: Tensor, start: int, dtype: DType, shape: Sequence[int]) -> Tensor:
    """Return a tensor over bytes of a realized, borrowed one of uint8, from byte `start` on, row-major.

    Consecutive ones can be joined without a copy, as those of an arena.
    """
    node = _stored(whole.uop)
    assert node is not None
    memory: Buffer = node.storage
    part = Buffer(memory.device, dtype, prod(shape), memory, memory.address + start, is_borrowed=True)
    return Tensor._make(reshape(buffer_node(part), tuple(shape)), memory.device)


def host_memory(size_bytes: int, device: str | None = None) -> memoryview:
    """Return new memory for bytes that `tensor_over` will borrow. It is a block of the device's allocator, which
    reuses blocks, if kernels there work on memory of the host."""
    name = device_name(device)
    limits = get_device(name).limits
    if not size_bytes or not (limits.is_host_visible and limits.wraps_host_memory):
        return memoryview(bytearray(size_bytes))
    memory: memoryview = allocate_buffer(name, dtypes.uint8, size_bytes).host_array().data
    return memory


def in_new_memory(
    dtype: DType, shape: Sequence[int], device: str | None = None, arena: WeightArena | None = None
) -> Tensor:
    """Return a realized tensor with undefined values, for a caller that assigns all of them, slice by slice. In
    `arena`, if it is one of that device."""
    name = device_name(device)
    made = partial(allocate_buffer, name) if arena is None or arena.device != name else arena.buffer
    buffer = made(dtype, prod(shape))
    buffer.is_borrowed = current_recording() is not None  # each replay needs separate memory: this is not written
    return Tensor._make(reshape(buffer_node(buffer), tuple(shape)), name)


def joined_in_memory(tensors: Sequence[Tensor]) -> Tensor | None:
    """Return the result of `cat` over the same memory, which from now on is not written in place: assigning to one
    of the tensors moves it. None if they are not consecutive in one block of memory, row-major, or do not fit
    together."""
    nodes = [_stored(tensor.uop) for tensor in tensors]
    buffers = [node.storage for node in nodes if node is not None and isinstance(node.storage, Buffer)]
    if len(buffers) < len(tensors) or any(prod(t.shape) != b.numel for t, b in zip(tensors, buffers, strict=True)):
        return None
    first, memory = tensors[0], buffers[0]
    if any((t.dtype, t.shape[1:]) != (first.dtype, first.shape[1:]) for t in tensors):
        return None
    if any(a.whole is not b.whole or a.address + a.nbytes != b.address for a, b in pairwise(buffers)):
        return None
    shape = (sum(t.shape[0] for t in tensors), *first.shape[1:])
    joined = Buffer(first.device, first.dtype, prod(shape), memory.whole, memory.address, is_borrowed=True)
    for tensor, buffer in zip(tensors, buffers, strict=True):
        buffer.is_borrowed = True
        tensor._put(buffer_node(buffer, tensor.node_shape))  # captures that write there look again
    return Tensor._make(reshape(buffer_node(joined), shape), first.device)


def bytes_of(tensor: Tensor) -> memoryview:
    """The values of a tensor as bytes, row-major."""
    import numpy as np

    tensor = tensor.detach()
    tensor = tensor.bitcast(dtypes.uint16) if tensor.dtype is dtypes.bfloat16 else tensor
    array = np.ascontiguousarray(tensor.numpy())
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    raw: Any = array.reshape(-1).view(np.uint8)
    return memoryview(raw)


def _pickled(tensor: Tensor) -> tuple[Any, ...]:
    """Values, dtype, shape and device; a leaf becomes a leaf."""
    is_leaf = tensor.requires_grad and tensor._is_leaf()
    return _unpickled, (bytes(bytes_of(tensor)), tensor.dtype, tensor.shape, tensor._device, is_leaf)


def _unpickled(data: bytes, dtype: DType, shape: Sequence[int], device: str | None, is_leaf: bool) -> Tensor:
    return tensor_over(memoryview(data), dtype, shape, device).requires_grad_(is_leaf)


copyreg.pickle(Tensor, _pickled)
