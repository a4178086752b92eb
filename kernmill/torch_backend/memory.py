"""Tensors of PyTorch as ours, and ours as PyTorch's, over the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from kernmill.ir import dtypes, reshape
from kernmill.runtime import Buffer, buffer_node, get_device, upload

from ..lazy import device_name
from ..tensor import Tensor
from .table import dtype_of

__all__ = ["Converter", "Order", "to_torch"]


Order = tuple[int, ...] | None  # the axes by descending stride, unless they are row-major
_MADE = "_kernmill_made"  # the attribute of PyTorch's tensors that are over memory of ours


class _Made(NamedTuple):
    """Our tensor below one of PyTorch's: what a forward pass keeps is what its backward pass reads."""

    tensor: Tensor
    order: Order
    key: Any


def to_torch(value: Tensor, order: Order, device: str, *, is_copied: Callable[[int], bool]) -> Any:
    """PyTorch's tensor over the memory of one of ours, whose axes are in an order; a copy of it for some addresses."""
    dense: Any = torch.utils.dlpack.from_dlpack(value) if value.dtype is dtypes.bfloat16 else (
        torch.from_numpy(value._on_host())
    )  # fmt: skip
    is_shared = value._device == device and get_device(device).limits.wraps_host_memory
    if is_copied(dense.data_ptr()):
        dense, is_shared = dense.clone(), False
    found = dense if order is None else dense.permute([order.index(i) for i in range(len(order))])
    if is_shared:
        found.__dict__[_MADE] = _Made(value, order, _key_of(found, device))
    return found


def _key_of(x: Any, device: str) -> Any:
    return device, x.data_ptr(), x.shape, x.stride(), x.dtype


class Converter:
    """Gives the tensor over the memory of one of PyTorch's; that of the last call is kept while it is a parameter.

    A parameter's memory is not copied, and an optimizer that writes to it is seen. What has to be copied is copied in
    each call: memory with gaps, and all memory for a device that cannot work on the host's.
    """

    def __init__(self) -> None:
        self.key: Any = None
        self.known: tuple[Tensor, Order] | None = None

    def __call__(self, x: Any, device: str) -> tuple[Tensor, Order]:
        """The tensor over the memory of x, and the order of x's axes in it; `device` is the default device."""
        key, made = _key_of(x, device), x.__dict__.get(_MADE)
        if made is not None and made.key == key:
            return made.tensor, made.order
        if self.known is not None and key == self.key:
            return self.known
        tensor, order, is_shared = _over(x.detach())
        is_kept = is_shared and isinstance(x, torch.nn.Parameter)
        self.key, self.known = (key, (tensor, order)) if is_kept else (None, None)
        return tensor, order


def _over(x: Any) -> tuple[Tensor, Order, bool]:
    """A tensor over the memory of one of PyTorch's, the order of its axes there, and True if it is the same memory."""
    if x.is_contiguous():
        tensor, is_shared = _over_dense(x)
        return tensor, None, is_shared
    strides = x.stride()
    order = tuple(sorted(range(x.ndim), key=lambda i: (-strides[i], i)))
    dense = x.permute(order)
    if not dense.is_contiguous():
        return _over_dense(x.contiguous())[0], None, False
    tensor, is_shared = _over_dense(dense)
    return tensor, order, is_shared


def _over_dense(x: Any) -> tuple[Tensor, bool]:
    kind = dtype_of(x.dtype)
    assert kind is not None
    array = (x.view(torch.uint16) if kind is dtypes.bfloat16 else x).numpy()
    name, shape = device_name(None), tuple(x.shape)
    address = x.data_ptr()
    if get_device(name).limits.wraps_host_memory and address % kind.size_bytes == 0 and array.size:
        node = buffer_node(Buffer(name, kind, array.size, array, address, is_borrowed=True), shape)
        return Tensor._make(node, name), True
    return Tensor._make(reshape(upload(array.reshape(-1), kind, name), shape), name), False
