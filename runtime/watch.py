"""Timing of single kernels: enabled by settings that print reports, or by a block of this process."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from kernmill.ir import DeviceTable, GraphPlan, Kernel, UOp, debug, setting

from . import recorder

__all__ = ["collecting_kernels", "collecting_placements", "is_quiet", "is_watched", "sees_kernels", "wants_report"]

launched: dict[tuple[str, UOp], tuple[Kernel, int]] | None = None
placed: list[tuple[GraphPlan, DeviceTable]] | None = None  # what `kernmill explain` shows


def wants_report() -> bool:
    """True if kernels are timed one by one, for a setting or a block that asks for it."""
    return launched is not None or not is_quiet()


def is_watched() -> bool:
    """True if a block of this process collects the times of kernels, or a profile is under way."""
    return launched is not None or recorder.active is not None


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
def collecting_kernels() -> Generator[dict[tuple[str, UOp], tuple[Kernel, int]]]:
    """Every kernel that is launched inside the block, by device and UOps, with the nanoseconds it took in all."""
    global launched
    outside, launched = launched, {}
    try:
        yield launched
    finally:
        launched = outside
