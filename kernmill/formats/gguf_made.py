"""Files in memory that look like GGUF files: some of their tensors are made when they are read.

A folder of another format is one, and so is a file whose weights are quantized while it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .gguf import GGUFEntry, GGUFFile
from .gguf_types import TensorType

__all__ = ["MadeFile", "MadeTensor", "made_file"]


@dataclass(frozen=True, slots=True)
class MadeTensor:
    """A tensor that `make` computes, every time that its values are read.

    `sample` gives some bytes of its sources: at most that many of each. `release` is called when the values were
    copied.
    Shapes: the slowest axis first.
    """

    type: TensorType
    shape: tuple[int, ...]
    make: Callable[[], memoryview]
    sample: Callable[[int], memoryview]
    release: Callable[[], None] = lambda: None


@dataclass(slots=True)
class MadeFile(GGUFFile):
    """A file with tensors that are made."""

    made: dict[str, MadeTensor] = field(default_factory=dict, repr=False)

    def values(self, name: str) -> memoryview:
        """The bytes of one tensor."""
        made = self.made.get(name)
        return GGUFFile.values(self, name) if made is None else made.make()

    def sample(self, name: str, size_bytes: int) -> memoryview:
        """The first bytes of a tensor, or of its sources."""
        made = self.made.get(name)
        return GGUFFile.sample(self, name, size_bytes) if made is None else made.sample(size_bytes)

    def release(self, name: str) -> None:
        """The tensor was copied: the pages of its sources need no memory."""
        made = self.made.get(name)
        if made is None:
            GGUFFile.release(self, name)
        else:
            made.release()


def made_file(file: GGUFFile, made: Mapping[str, MadeTensor]) -> MadeFile:
    """A file with these tensors, which replace others of the same names."""
    new = {
        name: GGUFEntry(name, one.type, one.shape, 0, one.type.nbytes(tuple(reversed(one.shape))))
        for name, one in made.items()
    }
    return MadeFile(
        {name: new.get(name, entry) for name, entry in {**file.entries, **new}.items()},
        file.metadata, file.version, file.alignment, file.where, file.paths, file.parts, dict(made),
    )  # fmt: skip
