"""What the compiler hands to the runtime: kernels in order, the buffers they work on, and where in memory those lie."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from .dtype import DType
from .ops import Ops
from .uop import UOp

__all__ = ["BufferPlan", "CheckItem", "Copy", "Item", "Kernel", "MemoryPlan", "Schedule"]


@dataclass(slots=True, eq=False)
class Kernel:
    """One launch: `ast` is a SINK of STOREs over PARAMs; PARAM slot i is the schedule's buffer `buffers[i]`."""

    ast: UOp
    buffers: tuple[int, ...]
    outputs: tuple[int, ...]
    device: str
    origin: str | None

    @property
    def key(self) -> bytes:
        """The digest of `ast`."""
        return self.ast.key

    @property
    def name(self) -> str:
        """The kernel's name: kind and sizes."""
        return str(self.ast.arg.name)

    @property
    def variables(self) -> tuple[tuple[str, int, int], ...]:
        """Its variables in the order of its arguments: names, and what they may at least and at most be."""
        return tuple(sorted((u.arg for u in self.ast.toposort() if u.op is Ops.VARIABLE), key=lambda arg: str(arg[0])))


@dataclass(frozen=True, slots=True)
class Copy:
    """Move a buffer to another device."""

    source: int
    target: int


Item: TypeAlias = "Kernel | Copy"


@dataclass(slots=True)
class BufferPlan:
    """One buffer of a schedule: an input (`slot` says which), or memory to be found for a result or an intermediate."""

    dtype: DType
    numel: int
    device: str
    slot: int | None = None
    is_output: bool = False


@dataclass(frozen=True, slots=True)
class CheckItem:
    """After the run: the bool in this buffer must be false, else IndexRangeError(message)."""

    buffer: int
    message: str


@dataclass(slots=True)
class Schedule:
    """Everything to run for one realize: `results[i]` is the buffer of root i."""

    items: list[Item] = field(default_factory=list[Item])
    buffers: list[BufferPlan] = field(default_factory=list[BufferPlan])
    results: list[int] = field(default_factory=list[int])
    checks: list[CheckItem] = field(default_factory=list[CheckItem])


@dataclass(slots=True)
class MemoryPlan:
    """Byte offsets of intermediates in their device's arena; `lower_bound_bytes` is alive at the worst moment."""

    offsets: dict[int, int] = field(default_factory=dict[int, int])
    arena_bytes: dict[str, int] = field(default_factory=dict[str, int])
    lower_bound_bytes: int = 0
    unplanned_bytes: int = 0
