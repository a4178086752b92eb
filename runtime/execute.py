"""Realize tensors (interim: through the evaluator, until the compiler is in place)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernmill.ir import DType, Ops, UOp, device_of, evaluate

from .buffer import Buffer, buffer_node

__all__ = ["download", "realize", "upload"]


def upload(array: Any, dtype: DType, device: str, *, borrow: bool = False) -> UOp:
    """A BUFFER node holding a 1-D C-contiguous NumPy array (bfloat16: as uint16); `borrow` keeps using the array's memory."""
    import numpy as np

    array = array if borrow else np.array(array)
    return buffer_node(Buffer(device, dtype, array.size, array, array.ctypes.data, is_borrowed=borrow))


def download(node: UOp) -> Any:
    """The values of a realized node as a 1-D NumPy array, a view where the host can address the memory."""
    return node.storage.host_array()


def realize(roots: Sequence[UOp]) -> None:
    """Compute every root; afterwards its `storage` is the Buffer with its values, row-major."""
    import numpy as np

    for root in roots:
        if root.storage is not None:
            continue
        table = {}
        for n in root.toposort(stop=lambda u: u.storage is not None):
            if n.storage is not None:
                table[n] = n.storage.host_array().reshape([1] if n.shape == () else n.shape)
        value = np.ascontiguousarray(evaluate(root, table)).reshape(-1)
        storage = upload(value, root.dtype, device_of(root) or "LLVM").storage
        root.storage = storage


_ = Ops
