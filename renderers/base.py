"""class Renderer: linear UOps to source text, for one target."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from kernmill.ir import AxisKind, DType, Ops, Target, UOp

__all__ = ["Renderer", "Signature", "grid_digits", "identifier", "is_aligned", "signature"]


class Signature(NamedTuple):
    """The arguments of a kernel: buffers by slot, then variables.

    `threads`: the size of its THREAD loop (the greatest of a symbolic one), the product of its GLOBAL loops times that
    of a work-group, or 1. `group`: the work-items that share memory, 0 if none do.
    """

    params: tuple[UOp, ...]
    variables: tuple[UOp, ...]
    threads: int
    group: int = 0


def signature(uops: Sequence[UOp]) -> Signature:
    """Read the signature off a linear list."""
    params = sorted((u for u in uops if u.op is Ops.PARAM), key=lambda u: int(u.arg[0]))
    variables = sorted((u for u in uops if u.op is Ops.VARIABLE), key=lambda u: str(u.arg[0]))
    loops = [u for u in uops if u.op is Ops.RANGE and u.arg[1] == AxisKind.THREAD]
    threads = max(((u.first_iteration or 0) + int(u.src[0].bounds[1]) for u in loops), default=1)
    sizes = {kind: [int(u.src[0].arg) for u in uops if u.op is Ops.RANGE and u.arg[1] == kind]
             for kind in (AxisKind.GLOBAL, AxisKind.LOCAL)}  # fmt: skip
    group = max(sizes[AxisKind.LOCAL], default=0)
    if group or sizes[AxisKind.GLOBAL]:
        threads = math.prod(sizes[AxisKind.GLOBAL]) * max(1, group)
    return Signature(tuple(params), tuple(variables), threads, group)


def grid_digits(uops: Sequence[UOp]) -> dict[UOp, tuple[int, int]]:
    """Return the GLOBAL loops, each with the product of the sizes of faster ones, and its own size."""
    digits: dict[UOp, tuple[int, int]] = {}
    inner = 1
    for u in reversed([u for u in uops if u.op is Ops.RANGE and u.arg[1] == AxisKind.GLOBAL]):
        digits[u] = inner, int(u.src[0].arg)
        inner *= digits[u][1]
    return digits


def identifier(text: str) -> str:
    """A loop's or accumulator's name as C and Python take it."""
    return text.replace(".", "_").replace("'", "_copy")


def multiple_of(u: UOp) -> int:
    """A number that certainly divides the int expression."""
    match u.op:
        case Ops.CONST if not isinstance(u.arg, tuple):
            return abs(int(u.arg)) or 1 << 30
        case Ops.MUL:
            return multiple_of(u.src[0]) * multiple_of(u.src[1])
        case Ops.SHL if u.src[1].is_const:
            return multiple_of(u.src[0]) << int(u.src[1].arg)
        case Ops.ADD | Ops.SUB:
            return math.gcd(multiple_of(u.src[0]), multiple_of(u.src[1]))
    return 1


def is_aligned(index: UOp, dtype: DType) -> bool:
    """True if a vector of 16, 32 or 64 bytes is at a multiple of its size: buffers start on 64 bytes."""
    size = dtype.size_bytes
    return size in (16, 32, 64) and multiple_of(index.src[1]) * dtype.scalar.size_bytes % size == 0


class Renderer(ABC):
    """A language. `target` tells the compiler its features; `render` generates the text."""

    def __init__(self, target: Target) -> None:
        self.target = target

    @abstractmethod
    def render(self, name: str, uops: Sequence[UOp]) -> str:
        """Source text of the kernel `name`."""

    def render_mapped(self, name: str, uops: Sequence[UOp]) -> tuple[str, list[tuple[int, int]]]:
        """(default: no lines) The text; and numbers of UOps, each with its first line from 0, in order."""
        return self.render(name, uops), []
