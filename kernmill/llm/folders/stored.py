"""The tensors in the files of a folder, which are parts of mapped files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...formats.disk import release
from ...formats.gguf_types import TensorType

__all__ = ["STORED", "FolderTensor", "PackedTensor"]

Array = np.ndarray[Any, Any]
STORED: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I8": np.dtype("u1"),
}


@dataclass(frozen=True, slots=True)
class FolderTensor:
    """A tensor in a folder: its bytes are part of a mapped file."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    part: int
    start: int
    stop: int
    data: memoryview

    def raw(self) -> memoryview:
        """Its bytes."""
        return self.data[self.start : self.stop]

    def stored(self) -> Array:
        """Its values in the stored dtype; bfloat16 as uint16. Shapes: `shape`."""
        found: Array = np.frombuffer(self.raw(), np.uint8).view(STORED[self.type.name]).reshape(self.shape)
        return found

    def floats(self) -> Array:
        """Its values in float32. Shapes: `shape`."""
        stored = self.stored()
        if self.type.name == "BF16":
            return (stored.astype(np.uint32) << 16).view(np.float32)
        return stored.astype(np.float32)

    def release(self) -> None:
        """Its pages need no memory."""
        release(self.data, self.start, self.stop)


@dataclass(frozen=True, slots=True)
class PackedTensor(FolderTensor):
    """Blocks of 32 values of 4 bits, whose scales are another tensor: they alternate in a GGUF file."""

    scales: FolderTensor

    def stored(self) -> Array:
        """The bytes of rows of MXFP4. Entries 2i and 2i + 1 share a byte in the folder; i and i + 16 do in a GGUF file.
        Shapes: (.., rows, bytes)."""
        lead = self.scales.shape
        pairs = np.frombuffer(self.raw(), np.uint8).reshape(*lead, 8, 2)
        low, high = ((pairs & 15, pairs >> 4)[half].reshape(*lead, 16) for half in (0, 1))
        codes = np.stack([low, high], -1).reshape(*lead, 2, 16)
        found = np.empty((*lead, 17), np.uint8)
        found[..., 0] = np.frombuffer(self.scales.raw(), np.uint8).reshape(lead)
        found[..., 1:] = codes[..., 0, :] | codes[..., 1, :] << 4
        return found.reshape(*lead[:-1], -1)

    def release(self) -> None:
        """Its pages need no memory."""
        release(self.data, self.start, self.stop)
        self.scales.release()
