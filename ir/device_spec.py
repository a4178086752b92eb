"""Devices and the links between them, as data: what the placement pass knows of a machine.

The runtime measures the rates once and stores them (runtime/device_rates.py); the compiler sees no device object.
Units: nanoseconds, bytes, operations per nanosecond, bytes per nanosecond (= GB/s).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from .dtype import DType
from .ops import Op, Ops

__all__ = ["DeviceSpec", "DeviceTable", "KernelWork", "Link", "Pin", "chain_cost", "pin_of", "show_ns"]


def show_ns(time_ns: float) -> str:
    """A time in three digits."""
    if time_ns == float("inf"):
        return "not possible"
    for unit, size in (("s", 1e9), ("ms", 1e6)):
        if time_ns >= size:
            return f"{time_ns / size:.3g} {unit}" if time_ns < 100 * size else f"{time_ns / size:.0f} {unit}"
    return f"{time_ns / 1e3:.3g} us" if time_ns < 1e5 else f"{time_ns / 1e3:.0f} us"


class Link(NamedTuple):
    """Copies from one device to another: a fixed time for each, and a rate."""

    latency_ns: float
    bytes_per_ns: float

    def time_ns(self, size_bytes: int) -> float:
        """Time of one copy."""
        return self.latency_ns + size_bytes / self.bytes_per_ns


class Pin(NamedTuple):
    """A regular expression, searched in source lines and layers, and the device of what they compute."""

    pattern: str
    device: str


def pin_of(pins: Sequence[Pin], origin: str | None) -> Pin | None:
    """The first pin whose pattern is found in an origin (ir/origin.py)."""
    if not origin:
        return None
    return next((pin for pin in pins if re.search(pin.pattern, origin)), None)


def chain_cost(op: Op) -> int:
    """Steps of a reduction for each term, in those of a sum: a maximum that keeps NaN compares and selects."""
    return 2 if op in (Ops.MAX, Ops.MIN) else 1


class KernelWork(NamedTuple):
    """The work of a kernel, counted before its loops are optimized. Units: operations by Op.cost, bytes."""

    additions: float = 0.0  # of float32, and what costs as much
    functions: float = 0.0  # exponentials and the like
    products: float = 0.0  # multiply-adds of a matrix product
    sums: float = 0.0  # terms of other reductions
    size_bytes: float = 0.0  # read and written
    crossed_bytes: float = 0.0  # of these: read in one order of axes and written in another one
    column_bytes: float = 0.0  # of these: read once, with a stride along the axis that is reduced
    again_bytes: float = 0.0  # read by a second loop, and more: the first one brought them into a cache
    long_products: float = 0.0  # of the products: down columns of long rows (PAGE_BYTES), read several times
    long_column_bytes: float = 0.0  # of the column bytes: those of long rows


class DeviceSpec(NamedTuple):
    """A device as data: its operations, rates and memory."""

    name: str
    launch_ns: float = 1_000.0  # of a kernel by itself that does nothing
    ops_per_ns: float = 1.0  # additions of float32, and what costs as much (Op.cost)
    products_per_ns: float = 1.0  # multiply-adds of a matrix product
    bytes_per_ns: float = 1.0  # read or written
    near_bytes: float = float(1 << 62)  # of a kernel: more of them exceed the caches
    far_bytes_per_ns: float = 1.0  # read or written by such a kernel
    functions_per_ns: float = 0.0  # exponentials and the like, in additions by Op.cost; 0: as additions
    sums_per_ns: float = 0.0  # terms of a row's sum; 0: as additions
    crossed_bytes_per_ns: float = 0.0  # of a transposition; 0: as other bytes
    column_bytes_per_ns: float = 0.0  # of sums of columns of short rows; 0: as other bytes
    next_launch_ns: float = 0.0  # of a kernel behind another one of the same device; 0: as the first
    again_bytes_per_ns: float = 0.0  # read again soon; 0: in no time
    long_products_per_ns: float = 0.0  # down columns of long rows; 0: as other products
    long_column_bytes_per_ns: float = 0.0  # of sums of such columns; 0: as other columns
    limit_bytes: int = 1 << 62  # of all buffers together
    max_alloc_bytes: int = 1 << 62  # of one buffer
    computes: bool = True  # False: holds tensors only, since DEVICE does not name it
    refused: Mapping[tuple[Op, tuple[DType, ...]], str] = {}  # ops by dtypes of operands, and why

    def with_rates(self, rates: Sequence[float]) -> Self:
        """The device with other rates, in the order of the fields; those behind the fourth may be absent."""
        given: dict[str, Any] = dict(zip(self._fields[1:_RATES], rates, strict=False))
        return self._replace(**given)

    def memory_ns(self, size_bytes: float) -> float:
        """Predicted time of reading or writing this number of bytes in a kernel."""
        return size_bytes / (self.bytes_per_ns if size_bytes <= self.near_bytes else self.far_bytes_per_ns)

    def kernel_ns(self, work: KernelWork) -> float:
        """Predicted time of a kernel without its launch: computing and memory overlap in part, so that of equal times
        both together take 1.4 of one."""
        computing = work.additions / self.ops_per_ns + work.functions / (self.functions_per_ns or self.ops_per_ns)
        computing += work.sums / (self.sums_per_ns or self.ops_per_ns)
        computing += (work.products - work.long_products) / self.products_per_ns
        computing += work.long_products / (self.long_products_per_ns or self.products_per_ns)
        crossed = work.crossed_bytes / self.crossed_bytes_per_ns if self.crossed_bytes_per_ns else 0.0
        columns = 0.0
        if self.column_bytes_per_ns:
            columns = (work.column_bytes - work.long_column_bytes) / self.column_bytes_per_ns
            columns += work.long_column_bytes / (self.long_column_bytes_per_ns or self.column_bytes_per_ns)
        moving = max(self.memory_ns(work.size_bytes), crossed, columns)
        moving += work.again_bytes / self.again_bytes_per_ns if self.again_bytes_per_ns else 0.0
        return math.hypot(computing, moving)

    @property
    def in_batch_ns(self) -> float:
        """The launch of a kernel among others of this device."""
        return self.next_launch_ns or self.launch_ns

    @property
    def start_ns(self) -> float:
        """How much longer the first kernel of a split takes to launch than the next ones."""
        return self.launch_ns - self.in_batch_ns


_RATES = DeviceSpec._fields.index("limit_bytes")  # where they end; in front of them is the name


def _shown(refused: Mapping[tuple[Op, tuple[DType, ...]], str]) -> list[str]:
    return sorted(f"{op.name} {[dtype.name for dtype in dtypes]} {why}" for (op, dtypes), why in refused.items())


class DeviceTable(NamedTuple):
    """The devices that a graph may use, in order of preference, and the links between them."""

    specs: tuple[DeviceSpec, ...]
    links: Mapping[tuple[str, str], Link]
    method: str = "cost"  # of the choice: least predicted time, or `passes`
    pins: tuple[Pin, ...] = ()
    price: Mapping[str, float] = {}  # nanoseconds for each byte that is allocated where memory is short

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the devices, in order."""
        return tuple(spec.name for spec in self.specs)

    def spec(self, name: str) -> DeviceSpec:
        """The device of that name."""
        return next(spec for spec in self.specs if spec.name == name)

    def text(self) -> str:
        """All that a placement depends on but free memory, the same in every process."""
        rows = [str([*spec[:_RATES], spec.max_alloc_bytes, spec.computes, _shown(spec.refused)]) for spec in self.specs]
        return "\n".join([self.method, *rows, *(f"{pair} {link}" for pair, link in sorted(self.links.items()))])

    def copy_ns(self, source: str, target: str, size_bytes: int) -> float:
        """Predicted time of a copy; 0 on one device."""
        return 0.0 if source == target else self.links[source, target].time_ns(size_bytes)

    def border_ns(self, source: str, target: str, size_bytes: int, is_given: bool) -> float:
        """Predicted time of a copy, and of the start of the split that reads it. No split waits for a value that is
        given, not computed."""
        if source == target:
            return 0.0
        start = 0.0 if is_given else self.spec(target).start_ns
        return self.copy_ns(source, target, size_bytes) + start + self.price.get(target, 0.0) * size_bytes
