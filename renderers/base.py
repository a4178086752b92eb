"""class Renderer: linear UOps to source text, for one target."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from kernmill.ir import AxisKind, Ops, Target, UOp

__all__ = ["Renderer", "Signature", "signature"]


@dataclass(frozen=True, slots=True)
class Signature:
    """What a kernel is called with: buffers by slot, then variables.

    `threads`: the size of its THREAD loop (the greatest of a symbolic one), of all its GLOBAL loops together, or 1.
    """

    params: tuple[UOp, ...]
    variables: tuple[UOp, ...]
    threads: int


def signature(uops: Sequence[UOp]) -> Signature:
    """Read the signature off a linear list."""
    params = sorted((u for u in uops if u.op is Ops.PARAM), key=lambda u: int(u.arg[0]))
    variables = sorted((u for u in uops if u.op is Ops.VARIABLE), key=lambda u: str(u.arg[0]))
    loops = [u.src[0] for u in uops if u.op is Ops.RANGE and u.arg[1] == AxisKind.THREAD]
    threads = int(loops[0].bounds[1]) if loops else 1
    grid = [u for u in uops if u.op is Ops.RANGE and u.arg[1] == AxisKind.GLOBAL]
    if grid:
        threads = math.prod(int(u.src[0].arg) for u in grid)
    return Signature(tuple(params), tuple(variables), threads)


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


class Renderer(ABC):
    """A language. `target` tells the compiler what may be used; `render` writes it down."""

    def __init__(self, target: Target) -> None:
        self.target = target

    @abstractmethod
    def render(self, name: str, uops: Sequence[UOp]) -> str:
        """Source text of the kernel `name`."""
