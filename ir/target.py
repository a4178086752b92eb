"""What a device's code may use. The compiler sees a Target and never a device or a renderer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from .dtype import DType, dtypes
from .ops import Op

__all__ = ["DOT_SUMS", "LINE_BYTES", "Target", "Unit"]

LINE_BYTES: Final = 64  # of a cache: they come together
_STREAMED = 2  # times L2
# What DOT adds up products of such values in: as many of them as a lane of the sum has room for.
DOT_SUMS: Final = {dtypes.int8: dtypes.int32, dtypes.uint8: dtypes.int32, dtypes.bfloat16: dtypes.float32}


class Unit(NamedTuple):
    """What a matrix unit does in one step (MMA): m x n sums of k products, `group` of which lie side by side in b.

    `items`: the work-items that do it together, as loops with how far apart their results lie in c, slowest first.
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
    """Capabilities, as data: two equal Targets get the same code."""

    name: str  # part of every cache key
    vector_bytes: int = 0  # widest vector register; 0: scalars only
    most_lanes: int = 64  # of a vector in the language
    vector_registers: int = 16
    ops: frozenset[Op] = frozenset()  # that the renderer prints, FOLD of sums of ints included; others are decomposed
    storage_dtypes: frozenset[DType] = frozenset(dtypes.data)  # what may be converted; float16 else by its bits
    compute_dtypes: frozenset[DType] = frozenset(dtypes.data)  # for sums and products; others go through float32
    dots: frozenset[tuple[DType, DType]] = frozenset()  # types of a and b that DOT takes, up to vector_bytes
    dot_most: int = 255  # of an unsigned byte: DOT of larger ones takes more instructions
    table_lanes: int = 0  # of the widest vector of bytes that TABLE looks up; 0: none
    table_bytes: int = 0  # of the table in two registers that TABLE looks up in; 0: none
    units: tuple[Unit, ...] = ()  # what MMA can do
    has_threads: bool = False  # the outermost loop may be cut into chunks
    group_items: int = 0  # most work-items of a group; 0: no work-items, else outer loops are spread over them
    local_bytes: int = 32 * 1024  # memory that the work-items of a group share
    has_gathers: bool = False  # a gather is faster than loads of its lanes one by one
    has_masks: bool = False  # vector loads and stores with a lane mask are cheap,
    masked_bytes: int = 1  # if lanes are no narrower than that; narrower ones go one by one
    has_fast_streams: bool = False  # stores around the caches hold up nothing that comes after them
    reads_ahead: bool = False  # what is read in the order in which it lies is there in time; asking for it holds it up
    l1_bytes: int = 32 * 1024
    l2_bytes: int = 512 * 1024

    def is_streamed(self, size_bytes: int) -> bool:
        """Whether no cache holds so much, so that it is best read once, in the order in which it lies."""
        return size_bytes > _STREAMED * self.l2_bytes

    def lanes(self, dtype: DType) -> int:
        """How many values of the dtype fill a vector register; 1 without vectors."""
        return min(self.most_lanes, max(1, self.vector_bytes // dtype.scalar.size_bytes))
