"""Machines: what the estimate of a kernel's time (compiler/kernel/cost.py) knows of a family of CPUs or GPUs.

Data only: a row for each family, each figure with its source. Sizes of caches come from the host. A schedule may depend
on a row, and so may the bits of a result: the row is part of the Target, and so of every cache key. Tests:
tests/ir/test_machine.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import Final, NamedTuple

from .process.errors import SettingError

__all__ = ["GENERIC", "MACHINES", "Level", "Machine"]


class Level(NamedTuple):
    """A cache of one core. Units: bytes; bytes per cycle that it can fetch from beyond it; cycles that each sequence of
    adjacent lines takes to begin."""

    name: str  # of what is beyond it
    size_bytes: int
    bytes_per_cycle: float
    run_cycles: float


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value > 0


@dataclass(frozen=True, slots=True)
class Machine:
    """One core of a family. Units: full-width vector registers per cycle, unless a comment names another."""

    name: str
    clock_ghz: float
    issue: float  # instructions per cycle, sustained
    fma: float  # arithmetic on floats
    vectors: float  # all vector operations together
    alu: float  # integers, comparisons, selections
    scalar: float  # integer instructions of addresses and conditions, per cycle, next to vectors
    shuffle: float
    load: float
    store: float
    divide: float
    matrix: float  # multiply-adds of a matrix unit, per cycle
    lane_cycles: float  # cycles of one lane of a gather or scatter
    mask_cycles: float  # extra cycles of a masked access
    latency: float  # cycles of one step of a reduction
    window: float  # instructions that are executed out of order: iterations of short reductions overlap
    spill_cycles: float  # cycles of an accumulator that is not in a register, per iteration
    loop_cycles: float  # cycles of entering and leaving a loop
    body_limit: float  # vector instructions of a loop that are kept decoded
    body_slowdown: float  # of issue, for longer ones
    prefetch_bytes: int  # how far ahead of its use data from memory is prefetched
    page_bytes: int  # of addresses that one entry of the first table of translations holds
    streams: float  # sequences of lines that hardware prefetch follows
    stream_slowdown: float  # of data, when twice as many are read
    overlap: float  # exponent: how much data transfers and instructions overlap; 1: not at all
    launch_ns: float
    fork_ns: float  # work that pays for another thread: waking it, and its misses
    levels: tuple[Level, ...]  # nearest first
    units: int = 1  # cores that one launch uses by itself: a GPU's

    def __post_init__(self) -> None:
        """Check a row.

        Raises:
            SettingError: a figure is not a positive number.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("name", "levels") and not _is_positive(value):
                raise SettingError(f"machine {self.name}: {field.name} is {value!r}; it must be a positive number.")
        if not isinstance(self.levels, tuple) or not all(isinstance(level, Level) for level in self.levels):
            raise SettingError(f"machine {self.name}: levels is {self.levels!r}; it must be a tuple of Level.")
        for level in self.levels:
            if not all(map(_is_positive, level[1:])):
                raise SettingError(f"machine {self.name}: {level} must have positive numbers.")
        if not self.levels:
            raise SettingError(f"machine {self.name}: levels is empty; it must have at least one cache.")

    def with_caches(self, sizes: Sequence[int]) -> Machine:
        """The row with the sizes of a host's caches, nearest first; a size of 0 leaves that of the row."""
        pairs = zip(self.levels, (*sizes, *[0] * len(self.levels)), strict=False)
        return replace(
            self, levels=tuple([level._replace(size_bytes=size or level.size_bytes) for level, size in pairs])
        )


_ZEN4: Final = Machine(
    "zen4",
    # AMD's Software Optimization Guide for Zen 4 has the ports; figures marked (f) were fitted to the times of
    # bench/corpus, each within a factor of 3 of the guide's or of a measured one.
    clock_ghz=3.6,  # measured: 116 GFLOP/s at one 512-bit FMA per cycle
    issue=4.0,  # guide: 6 micro-operations; (f)
    fma=0.7,  # guide: one 512-bit FMA per cycle, and one addition; (f)
    vectors=3.2,  # guide: 2 of 512 bits, 4 narrower; (f)
    alu=4.0,  # guide: 2 of 512 bits, 4 narrower; (f)
    scalar=13.0,  # guide: 4 next to vectors, and most are part of an address; (f)
    shuffle=0.84,  # guide: 1; (f)
    load=1.0,  # guide
    store=0.95,  # guide: 0.5, 1 below 512 bits; (f)
    divide=0.5,  # guide: 0.2, narrower ones 0.4; (f)
    matrix=1024.0,  # none: an emulated one is not estimated
    lane_cycles=2.1,  # guide: 1.2 for a gather, more for a scatter; (f)
    mask_cycles=1.7,  # (f)
    latency=4.0,  # guide
    window=85.0,  # guide: 320 micro-operations; (f)
    spill_cycles=4.0,  # (f)
    loop_cycles=1.4,  # (f)
    body_limit=360.0,  # (f)
    body_slowdown=1.8,  # (f)
    prefetch_bytes=2048,  # measured: rows of matrices beyond the caches; 4096 is as fast
    page_bytes=4096,
    streams=9.6,  # (f)
    stream_slowdown=1.1,  # (f)
    overlap=3.0,  # (f)
    launch_ns=28.0,  # (f), of a batch that is repeated
    fork_ns=5000.0,  # the least chunk that threads took before there were rows; not measured again
    levels=(
        Level("L2", 32 << 10, 32.0, 1.1),  # guide: 32 bytes; (f)
        Level("L3", 1 << 20, 54.0, 0.57),  # guide: 32 bytes; (f)
        Level("memory", 16 << 20, 8.0, 5.7),  # measured: 25 to 40 GB/s; (f)
    ),
)

_GOLDEN_COVE: Final = replace(
    _ZEN4,
    name="golden_cove",
    # Intel's Optimization Reference Manual: ports 0 and 5 are 512 bits wide. Figures that are not here are Zen 4's: no
    # times of candidates were recorded on this family.
    clock_ghz=3.5,  # bench/ceilings.py on a Xeon: 222.7 GFLOP/s at 3.48 GHz
    issue=6.0,
    fma=2.0,
    vectors=2.0,
    shuffle=1.0,
    load=2.0,
    store=1.0,
    divide=0.06,
    matrix=1024.0,  # one 16 x 16 x 64 step of bytes each 16 cycles
    levels=(
        Level("L2", 48 << 10, 48.0, 1.0),  # bench/ceilings.py: 160 to 180 GB/s
        Level("L3", 2 << 20, 8.0, 2.0),  # 29 GB/s
        Level("memory", 32 << 20, 4.5, 8.0),  # 15 to 16 GB/s
    ),
)
_SKYLAKE: Final = replace(
    _GOLDEN_COVE,
    name="skylake_avx512",
    clock_ghz=2.8,
    issue=4.0,  # manual
    body_limit=150.0,  # manual: 1,536 micro-operations
)
_HASWELL: Final = replace(
    _GOLDEN_COVE,
    name="x86_avx2",  # Haswell and later, and Zen 1 to 3: the figures of Haswell
    clock_ghz=3.2,
    issue=4.0,  # manual, as all below
    vectors=3.0,
    divide=0.07,
    lane_cycles=1.7,
    levels=(
        Level("L2", 32 << 10, 32.0, 1.0),
        Level("L3", 1 << 20, 10.0, 2.0),
        Level("memory", 16 << 20, 4.5, 8.0),
    ),
)
_SSE: Final = replace(
    _HASWELL,
    name="x86_sse",
    fma=1.0,  # a product and an addition in two instructions, on a port each
    load=2.0,
    lane_cycles=2.0,  # no gathers
    mask_cycles=4.0,  # no masks
)
_NEON: Final = replace(
    _HASWELL,
    name="neon",  # Arm's Software Optimization Guide of Neoverse N1; what it has not is Haswell's
    clock_ghz=2.6,
    vectors=2.0,
    alu=2.0,
    shuffle=2.0,
    store=1.0,
    divide=0.1,
    matrix=64.0,  # Arm's guide of Neoverse N2: two steps of 2 x 2 x 8 bytes
    lane_cycles=2.0,  # no gathers
    mask_cycles=4.0,  # no masks
    levels=(
        Level("L2", 64 << 10, 32.0, 1.0),
        Level("L3", 1 << 20, 16.0, 2.0),
        Level("memory", 16 << 20, 8.0, 8.0),
    ),
)
_GPU: Final = replace(
    _NEON,
    name="gpu",  # NVIDIA's whitepaper on the H100: a unit has 128 lanes, 32 registers of 16 bytes; not tried on a GPU
    clock_ghz=1.7,
    issue=32.0,
    fma=32.0,
    vectors=64.0,
    alu=16.0,
    scalar=64.0,
    shuffle=8.0,
    load=8.0,
    store=8.0,
    divide=4.0,
    matrix=1024.0,
    lane_cycles=0.06,
    mask_cycles=0.01,
    loop_cycles=0.1,
    latency=0.1,  # hidden by other work-items
    launch_ns=5000.0,
    units=132,
    levels=(
        Level("L2", 128 << 10, 3200.0, 0.01),
        Level("memory", 50 << 20, 1900.0, 0.02),
    ),
)
GENERIC: Final = replace(_HASWELL, name="generic")
MACHINES: Final = {row.name: row for row in (_ZEN4, _GOLDEN_COVE, _SKYLAKE, _HASWELL, _SSE, _NEON, _GPU, GENERIC)}
