"""What every kernel carries besides its nodes, and how often its loops run."""

from __future__ import annotations

from dataclasses import dataclass

from kernmill.ir import UOp

__all__ = ["KernelInfo", "iterations"]


def iterations(loop: UOp) -> int:
    """How often a loop runs; where its size is known at launch only, at most."""
    return int(loop.src[0].bounds[1])


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """The arg of a kernel's SINK: its name, the order of its output loops (outermost first), the actions so far."""

    name: str
    order: tuple[str, ...]
    actions: tuple[str, ...] = ()
