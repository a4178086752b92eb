"""Memory for arrays that a captured call is given again and again, such as the inputs of a model."""

from __future__ import annotations

from typing import Any

from kernmill.ir import DType, process_lock
from kernmill.runtime import allocate_buffer, fill

from ..tensor import Tensor
from .entry import Fresh

__all__ = ["Staging"]


class Staging:
    """Makes tensors of arrays of one shape and dtype; their memory is reused if no reference can see its old values."""

    def __init__(self, device: str, dtype: DType, shape: tuple[int, ...], numel: int) -> None:
        self._fresh = Fresh(allocate_buffer(device, dtype, numel))
        self._shape = self._fresh.shape(shape)
        self._lock = process_lock()

    def tensor(self, array: Any) -> Tensor:
        """A tensor with the values of an array of that shape and dtype, in the machine's byte order."""
        with self._lock:  # until a tensor has it, another thread may take the same memory
            one = self._fresh.take()
            made = Tensor._make(one.nodes[self._shape], self._fresh.device)
        fill(one.buffer, array.reshape(-1))
        return made
