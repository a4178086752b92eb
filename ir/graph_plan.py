"""What the compiler hands to the runtime: kernels in order, the buffers they work on, and where in memory those lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Self, TypeAlias

from .dtype import DType
from .ops import Ops
from .uop import UOp

__all__ = ["BufferPlan", "CheckItem", "Copy", "GraphPlan", "Item", "Kernel", "MemoryPlan"]


@dataclass(eq=False, slots=True)
class Kernel:
    """One launch: `ast` is a SINK of STOREs over PARAMs; PARAM slot i is the schedule's buffer `buffers[i]`."""

    made: Callable[[], tuple[UOp, str | None]]  # `ast`, and the line it comes from: found when first asked for
    buffers: tuple[int, ...]
    outputs: tuple[int, ...]
    device: str
    key: bytes  # the digest of `ast`
    name: str  # kind and sizes
    variables: tuple[tuple[str, int, int], ...]  # in the order of its arguments, with what they may be

    @classmethod
    def of(cls, ast: UOp, buffers: tuple[int, ...], outputs: tuple[int, ...], device: str, origin: str | None) -> Self:
        """The kernel of this `ast`."""
        found = sorted((u.arg for u in ast.toposort() if u.op is Ops.VARIABLE), key=lambda arg: str(arg[0]))
        return cls(lambda: (ast, origin), buffers, outputs, device, ast.key, ast.arg.name, tuple(found))

    @property
    def ast(self) -> UOp:
        """What is computed."""
        return self.made()[0]

    @property
    def origin(self) -> str | None:
        """The user's line."""
        return self.made()[1]


class Copy(NamedTuple):
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
    part: tuple[int, int] | None = None  # of another buffer: which one, and the first value there
    extent: str = ""  # how many values there are, as Python in the names of variables; "": always `numel`

    @property
    def is_intermediate(self) -> bool:
        """Whether it lives only while the schedule runs."""
        return self.slot is None and not self.is_output and self.part is None


class CheckItem(NamedTuple):
    """After the run: the bool in this buffer must be false, else IndexRangeError(message)."""

    buffer: int
    message: str


@dataclass(slots=True)
class GraphPlan:
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
