"""Tensors of PyTorch as ours, over the same memory."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from kernmill.ir import dtypes, reshape
from kernmill.runtime import upload

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
    strides = x.stride()
    order = sorted(range(x.ndim), key=lambda i: (-strides[i], i))
    dense = x.permute(order)
    if not dense.is_contiguous():
        order, dense = list(range(x.ndim)), x.contiguous()
    kind = dtype_of(x.dtype)
    assert kind is not None
    flat = dense.reshape(-1)
    flat = flat.view(torch.uint16) if kind is dtypes.bfloat16 else flat
    place = device_name(None)
    assert prod(x.shape) == flat.numel()
    node = reshape(upload(flat.resolve_neg().numpy(), kind, place, borrow=True), tuple(dense.shape))
    made = Tensor._make(node, place)
    return made if order == sorted(order) else made.permute([order.index(i) for i in range(x.ndim)])
