"""Target features: the compiler sees a Target and never a device or a renderer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from .dtype import DType, dtypes
from .machine import GENERIC, Machine
from .ops import Op

__all__ = ["ALIAS_BYTES", "BANK_BYTES", "DOT_SUMS", "LINE_BYTES", "PAGE_BYTES", "WORD_BYTES", "Target", "Unit"]

LINE_BYTES: Final = 64  # of a cache: they come together
ALIAS_BYTES: Final = 1024  # rows at a multiple of this stride are in the same sets of a cache
PAGE_BYTES: Final = 4096  # rows at a multiple of this stride are on pages of their own, and in one set of an L1 cache
BANK_BYTES: Final = 16  # of padding so that elements of a column are in different banks of shared memory
WORD_BYTES: Final = 4  # of each lane that one instruction takes for a product of bytes
_STREAMED = 2  # times L2
_REGISTERS_OF_A_STREAM = 8
# dtypes of DOT's accumulator by factor dtypes: a lane of the accumulator has room for that many products.
DOT_SUMS: Final = {dtypes.int8: dtypes.int32, dtypes.uint8: dtypes.int32, dtypes.bfloat16: dtypes.float32}


class Unit(NamedTuple):
    """A matrix unit: one step (MMA) computes m x n reductions of k products, `group` of which are adjacent in b.

    `items`: the work-items that share a step, as loops with the distance of their results in c, slowest first.
    """

    a: DType
    b: DType
    c: DType
    m: int
    n: int
    k: int
    group: int
    items: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """Target features as data: equal Targets get the same code."""

    name: str  # part of every cache key
    vector_bytes: int = 0  # widest vector register; 0: scalars only
    most_lanes: int = 64  # of a vector in the language
    vector_registers: int = 16
    instructions: str = ""  # the file of `renderers/intrinsics` with the instructions that only this machine has
    scalar_dtypes: frozenset[DType] = frozenset()  # without vectors of them
    ops: frozenset[Op] = frozenset()  # that the renderer prints, FOLD of sums of ints included; others are decomposed
    storage_dtypes: frozenset[DType] = frozenset(dtypes.data)  # what may be converted; float16 else by its bits
    compute_dtypes: frozenset[DType] = frozenset(dtypes.data)  # for arithmetic; other dtypes are converted to float32
    dots: frozenset[tuple[DType, DType]] = frozenset()  # types of a and b that DOT takes, up to vector_bytes
    least_dot_lanes: int = 4  # of DOT's sums
    dot_most: int = 255  # largest unsigned byte that DOT takes in one instruction
    table_lanes: int = 0  # lanes of the widest byte vector that TABLE can look up; 0: none
    table_bytes: int = 0  # bytes of a table in 2 or 4 registers for TABLE; 0: none
    units: tuple[Unit, ...] = ()  # shapes of MMA
    register_units: tuple[Unit, ...] = ()  # of MMA whose operands and results are vector registers
    emulates_units: bool = False  # by functions
    has_threads: bool = False  # the outermost loop may be divided into chunks
    # most work-items of a work-group; 0: no work-items, else outer loops are distributed over them
    group_items: int = 0
    local_bytes: int = 32 * 1024  # memory that the work-items of a work-group share
    has_gathers: bool = False  # a gather is faster than separate loads of its lanes
    has_masks: bool = False  # vector loads and stores with a lane mask are cheap,
    min_mask_lane_bytes: int = 1  # lanes of at least that many bytes; narrower ones are accessed one by one
    has_fast_nontemporal_stores: bool = False  # non-temporal stores do not delay later instructions
    has_hardware_prefetch: bool = (
        False  # effective hardware prefetch of sequential reads; software prefetches slow it down
    )
    l1_bytes: int = 32 * 1024
    l2_bytes: int = 512 * 1024
    plain: frozenset[str] = frozenset()  # forms of OpenCL C without functions: fma, load, hints, dots (cl_trial.py)
    machine: Machine = GENERIC  # what the estimate of times knows of the family

    def is_streamed(self, size_bytes: int) -> bool:
        """True if the data exceed all caches, so that they are best read once and sequentially."""
        return size_bytes > _STREAMED * self.l2_bytes

    @property
    def accumulators(self) -> int:
        """The most accumulators of a register tile that leave registers for its operands."""
        return self.vector_registers * 3 // 4

    @property
    def read_streams(self) -> int:
        """The slices of a matrix that one loop reads at a time: each has its accumulators and its addresses."""
        return max(1, self.vector_registers // _REGISTERS_OF_A_STREAM)

    def lanes(self, dtype: DType) -> int:
        """Return the number of values of the dtype in a vector register; 1 without vectors."""
        is_scalar = dtype.scalar in self.scalar_dtypes
        return 1 if is_scalar else min(self.most_lanes, max(1, self.vector_bytes // dtype.scalar.size_bytes))
