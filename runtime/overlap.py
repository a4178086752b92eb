"""Exchanges that go on while kernels run: where each begins among the launches of a recording, and where it is awaited.

A function of the host that begins an exchange runs right after the launches that write what it reads. The one that
ends it runs right before the first launch that needs its memory. Functions that begin something keep their order,
which is that of all ranks. Tests: tests/runtime/test_overlap.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .memory.buffer import Arena, Buffer

__all__ = ["BEGIN", "END", "MemoryUse", "overlapped"]

BEGIN, END = "begin", "end"  # of an exchange


class MemoryUse(NamedTuple):
    """A kernel, a copy, a check or a function of the host. `role`: BEGIN, END, another one that other BEGINs do
    not pass, or "" for work of a device."""

    touched: Sequence[Buffer]
    written: Sequence[Buffer]
    role: str = ""


def overlapped(launches: Sequence[MemoryUse]) -> list[int]:
    """The launches in a new order, by number."""
    order: list[int] = []
    for number, launch in enumerate(launches):
        at = len(order)
        if launch.role == BEGIN and not _is_in_arena(launch.touched):
            while at and not _begins_after(launch, launches[order[at - 1]]):
                at -= 1
        order.insert(at, number)
    for number in [n for n in reversed(order) if launches[n].role == END and not _is_in_arena(launches[n].touched)]:
        at = order.index(number)
        del order[at]
        while at < len(order) and not _ends_before(launches[number], launches[order[at]]):
            at += 1
        order.insert(at, number)
    return order


def _begins_after(begin: MemoryUse, other: MemoryUse) -> bool:
    """A failed check ends the program, or the next run, and so may come later."""
    if other.role not in ("", END, "check"):
        return True
    return _meet(begin.touched, other.written) or _meet(begin.written, other.touched)


def _ends_before(end: MemoryUse, other: MemoryUse) -> bool:
    return other.role == "check" or _meet(end.touched, other.written) or _meet(end.written, other.touched)


def _meet(some: Iterable[Buffer], others: Iterable[Buffer]) -> bool:
    """True if memory is shared."""
    return any(
        a.address < b.address + b.nbytes and b.address < a.address + a.nbytes and a.device == b.device
        for a in some for b in others
    )  # fmt: skip


def _is_in_arena(buffers: Iterable[Buffer]) -> bool:
    """True for memory that has other addresses in replays: those of now do not tell what shares it."""
    return any(isinstance(buffer.whole, Arena) for buffer in buffers)
