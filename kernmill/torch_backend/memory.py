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

    A parameter's memory is not copied, and an optimizer that writes to it is seen. What has to be copied is copied in
    each call: memory with gaps, and all memory for a device that cannot work on the host's.
    """

    def __init__(self) -> None:
        self.key: Any = None
        self.tensor: Tensor | None = None

    def __call__(self, x: Any) -> Tensor:
        """The tensor over the memory of x."""
        if not isinstance(x, torch.nn.Parameter):
            return _over(x.detach())[0]
        key = (x.data_ptr(), x.shape, x.stride(), x.dtype, device_name(None))
        if self.tensor is not None and key == self.key:
            return self.tensor
        tensor, is_shared = _over(x.detach())
        self.key, self.tensor = (key, tensor) if is_shared else (None, None)
        return tensor


def _over(x: Any) -> tuple[Tensor, bool]:
    """A tensor over the memory of one of PyTorch's, whose axes may be in any order; True if it is the same memory."""
    if x.is_contiguous():
        return _over_dense(x)
    strides = x.stride()
    order = sorted(range(x.ndim), key=lambda i: (-strides[i], i))
    dense = x.permute(order)
    if not dense.is_contiguous():
        return _over_dense(x.contiguous())[0], False
    tensor, is_shared = _over_dense(dense)
    return tensor.permute([order.index(i) for i in range(x.ndim)]), is_shared


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
