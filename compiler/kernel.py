"""What every kernel carries besides its nodes, and how often its loops run."""

from __future__ import annotations

from dataclasses import dataclass

from kernmill.ir import Ops, UOp

__all__ = ["KernelInfo", "iterations", "memory_of"]


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
