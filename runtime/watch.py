"""Timing of single kernels: enabled by settings that print reports, or by a block of this process."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from kernmill.ir import DeviceTable, GraphPlan, Kernel, UOp, debug, setting

from . import recorder

__all__ = [
    "collecting_drafts", "collecting_kernels", "collecting_placements", "is_quiet", "sees_kernels",
    "wants_report", "watcher",
]  # fmt: skip

launched: dict[tuple[str, UOp], tuple[Kernel, int]] | None = None
drafts: list[Any] | None = None  # Drafts of kernmill.compiler, which a warm start does not import: planned graphs
placed: list[tuple[GraphPlan, DeviceTable]] | None = None  # what `kernmill explain` shows


def wants_report() -> bool:
    """True if kernels are timed one by one, for a setting or a block that asks for it."""
    return launched is not None or not is_quiet()


def watcher() -> object:
    """The recorder of a profile that is under way, or another object if a block of this process collects the times of
    kernels; None: nobody watches."""
    return recorder.active if launched is None else launched


def sees_kernels() -> bool:
    """True if a block of this process collects each kernel by itself."""
    return launched is not None


def is_quiet() -> bool:
    """True if no setting enables reports. It changes only with `active_overrides`."""
    return debug() < 2 and not setting("DUMP")


@contextmanager
def collecting_placements() -> Generator[list[tuple[GraphPlan, DeviceTable]]]:
    """Every graph that is placed inside the block, with the table of devices."""
    global placed
    outside, placed = placed, []
    try:
        yield placed
    finally:
        placed = outside


@contextmanager
def collecting_drafts() -> Generator[list[Any]]:
    """Every graph that is planned inside the block, with what each pass made of it; also those that the disk cache has
    a plan of."""
    global drafts
    outside, drafts = drafts, []
    try:
        yield drafts
    finally:
        drafts = outside


@contextmanager
def collecting_kernels() -> Generator[dict[tuple[str, UOp], tuple[Kernel, int]]]:
    """Every kernel that is launched inside the block, by device and UOps, with the nanoseconds it took in all."""
    global launched
    outside, launched = launched, {}
    try:
        yield launched
    finally:
        launched = outside
