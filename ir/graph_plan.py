"""The compiler's result for the runtime: kernels in order, the buffers they use, and the memory offsets of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self, TypeAlias

from .dtype import DType
from .ops import Ops
from .origin import in_run
from .uop import UOp

__all__ = ["BufferPlan", "CheckItem", "Copy", "GraphPlan", "Item", "Kernel", "MemoryPlan", "PlacedUnit", "Placement"]

Origins: TypeAlias = "tuple[str, ...]"


@dataclass(eq=False, slots=True)
class Kernel:
    """One launch: `ast` is a SINK of STOREs over PARAMs; PARAM slot i is the plan's buffer `buffers[i]`."""

    made: Callable[[], tuple[UOp, Origins]]  # returns `ast` and its source lines; called at the first use
    buffers: tuple[int, ...]
    outputs: tuple[int, ...]
    device: str
    key: bytes  # the digest of `ast`
    name: str  # kind and sizes
    variables: tuple[tuple[str, int, int], ...]  # in the order of its arguments, with their bounds
    lines: Sequence[str | None] | None = None  # source lines of this run, by node, where they are not the plan's

    @classmethod
    def of(cls, ast: UOp, buffers: tuple[int, ...], outputs: tuple[int, ...], device: str, origins: Origins) -> Self:
        """The kernel of this `ast`."""
        found = sorted((u.arg for u in ast.toposort() if u.op is Ops.VARIABLE), key=lambda arg: str(arg[0]))
        return cls(lambda: (ast, origins), buffers, outputs, device, ast.key, ast.arg.name, tuple(found))

    @property
    def ast(self) -> UOp:
        """The SINK that the kernel computes."""
        return self.made()[0]

    @property
    def origins(self) -> Origins:
        """The user's source lines (ir/origin.py): that of the result first, then of all else that is fused into it."""
        return tuple(dict.fromkeys(in_run(origin, self.lines) for origin in self.made()[1]))

    @property
    def origin(self) -> str | None:
        """The source line of the result."""
        return next(iter(self.origins), None)


class Copy(NamedTuple):
    """Move a buffer to another device."""

    source: int
    target: int


Item: TypeAlias = "Kernel | Copy"


@dataclass(slots=True)
class BufferPlan:
    """A buffer of a schedule: an input (number `slot`), or memory for a result or an intermediate."""

    dtype: DType
    numel: int
    device: str
    slot: int | None = None
    is_output: bool = False
    part: tuple[int, int] | None = None  # a slice of another buffer: its number, and the first element
    extent: str = ""  # number of elements, as Python over the names of variables; "": always `numel`
    is_kept: bool = False  # the copy of an input that nothing writes here: it serves later runs too

    @property
    def is_intermediate(self) -> bool:
        """True if it is used only while the schedule runs."""
        return self.slot is None and not self.is_output and self.part is None and not self.is_kept


class CheckItem(NamedTuple):
    """After the run: the bool in this buffer must be false, else IndexRangeError(message)."""

    buffer: int
    message: str


class PlacedUnit(NamedTuple):
    """The decision of the placement for about one kernel."""

    op: str
    origin: str | None
    device: str
    reason: str
    predicted_ns: float


class Placement(NamedTuple):
    """The device of each unit of a graph, and the predicted time of all, copies included."""

    units: list[PlacedUnit]
    predicted_ns: float
    alternatives: dict[str, float]  # the time with all on one device, as far as it can, by device


@dataclass(slots=True)
class GraphPlan:
    """All steps of one realize: `results[i]` is the buffer of root i."""

    items: list[Item] = field(default_factory=list[Item])
    buffers: list[BufferPlan] = field(default_factory=list[BufferPlan])
    results: list[int] = field(default_factory=list[int])
    checks: list[CheckItem] = field(default_factory=list[CheckItem])
    placement: Callable[[], Placement] | None = None  # of a graph that was placed in this process; reasons take time


@dataclass(slots=True)
class MemoryPlan:
    """Byte offsets of intermediates in their device's arena; `lower_bound_bytes` is the peak of live bytes."""

    offsets: dict[int, int] = field(default_factory=dict[int, int])
    arena_bytes: dict[str, int] = field(default_factory=dict[str, int])
    lower_bound_bytes: int = 0
    unplanned_bytes: int = 0
