"""Users of memory: the largest live buffers of a device, for the message of an out-of-memory error.

Nothing is counted in normal operation: for an error message, a search through Python's objects finds buffers.
"""

from __future__ import annotations

import gc
from math import prod
from typing import Any

from kernmill.ir import UOp

__all__ = ["largest_holders"]

_SHOWN = 3


def largest_holders(device: str) -> str:
    """`Largest on FAR: (2048, 4096) float32 at train.py:9, ..`, with a space behind; empty if nothing lives there."""
    nodes = [o for o in gc.get_objects() if type(o) is UOp]
    found: dict[int, tuple[int, str]] = {}
    for node in nodes:
        source = node.src[0] if node.src and node.storage is None else node  # the user's shape
        storage: Any = source.storage
        if getattr(storage, "device", None) != device or not hasattr(storage, "whole"):
            continue
        shape = tuple(size for size in node.shape if isinstance(size, int))
        if prod(shape) == storage.numel and (id(storage) not in found or len(shape) > 1):
            line = node.origin or source.origin
            text = f"{shape} {storage.dtype.name}{f' at {line}' if line else ''}"
            found[id(storage)] = storage.nbytes, text
    most = sorted(found.values(), reverse=True)[:_SHOWN]
    return f"Largest on {device}: {'; '.join(text for _, text in most)}. " if most else ""
