"""What the scheduler hands to the runtime: kernels in order, and the buffers they work on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from kernmill.ir import DType, Ops, UOp

__all__ = ["BufferPlan", "CheckItem", "Copy", "Item", "Kernel", "KernelInfo", "Schedule", "iterations", "memory_of"]


def iterations(loop: UOp) -> int:
    """How often a loop runs; where its size is known at launch only, at most."""
    return int(loop.src[0].bounds[1])


def memory_of(node: UOp) -> UOp:
    """The PARAM, LOCAL or REG behind an INDEX or AFTER."""
    while node.op in (Ops.INDEX, Ops.AFTER):
        node = node.src[0]
    return node


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """The arg of a kernel's SINK: its name, the order of its output loops (outermost first), the actions so far."""

    name: str
    order: tuple[str, ...]
    actions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch: `ast` is a SINK of STOREs over PARAMs; PARAM slot i is the schedule's buffer `buffers[i]`."""

    ast: UOp
    buffers: tuple[int, ...]
    outputs: tuple[int, ...]
    device: str
    origin: str | None

    @property
    def name(self) -> str:
        """The kernel's name: kind and sizes."""
        info: KernelInfo = self.ast.arg
        return info.name


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
