"""Tensors of PyTorch as ours, over the same memory."""

from __future__ import annotations

from typing import Any

import torch

from kernmill.ir import dtypes, reshape
from kernmill.runtime import Buffer, buffer_node, get_device, upload

from ..lazy import device_name
from ..tensor import Tensor
from .table import dtype_of

__all__ = ["Converter"]


class Converter:
    """Gives the tensor over the memory of one of PyTorch's; that of the last call is kept while it is a parameter.

    A parameter's memory is not copied, and an optimizer that writes to it is seen. Memory with gaps is copied.
    """

    def __init__(self) -> None:
        self.key: Any = None
        self.tensor: Tensor | None = None

    def __call__(self, x: Any) -> Tensor:
        """The tensor over the memory of x."""
        if not isinstance(x, torch.nn.Parameter):
            return _over(x.detach())
        key = (x.data_ptr(), x.shape, x.stride(), x.dtype, device_name(None))
        if self.tensor is None or key != self.key:
            self.key, self.tensor = key, _over(x.detach())
        return self.tensor


def _over(x: Any) -> Tensor:
    """A tensor over the memory of one of PyTorch's, whose axes may be in any order."""
    if x.is_contiguous():
        return _over_dense(x)
    strides = x.stride()
    order = sorted(range(x.ndim), key=lambda i: (-strides[i], i))
    dense = x.permute(order)
    if not dense.is_contiguous():
        return _over_dense(x.contiguous())
    return _over_dense(dense).permute([order.index(i) for i in range(x.ndim)])


def _over_dense(x: Any) -> Tensor:
    """A tensor over contiguous memory; without a copy where the device can work on memory of the host."""
    kind = dtype_of(x.dtype)
    assert kind is not None
    array = (x.view(torch.uint16) if kind is dtypes.bfloat16 else x).numpy()
    place, shape = device_name(None), tuple(x.shape)
    address = x.data_ptr()
    if get_device(place).limits.wraps_host_memory and address % kind.size_bytes == 0 and array.size:
        node = buffer_node(Buffer(place, kind, array.size, array, address, is_borrowed=True), shape)
    else:
        node = reshape(upload(array.reshape(-1), kind, place, borrow=True), shape)
    return Tensor._make(node, place)
