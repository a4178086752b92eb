"""PYTHON: the reference device. Kernels are readable Python, every op means what the op table says."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any

from kernmill.ir import (
    DType,
    InternalError,
    Ops,
    Target,
    bits_of,
    cached_property,
    dtypes,
    float_to_int,
    from_bits,
    setting,
    to_dtype,
)
from kernmill.renderers import AMX_UNITS, MMA_UNITS, PYTHON_OPS, PythonRenderer, Renderer, function_name, rounder_name

from .device import Call, Device, Program
from .memory.buffer import Buffer

__all__ = ["PythonDevice"]


class PythonDevice(Device):
    """Slow and obvious."""

    CONTRACT = 1
    description = "the reference: plain Python"

    @cached_property
    def renderer(self) -> Renderer:
        """Python, scalars only; with TARGET=gpu in groups of work-items, with TARGET=amx for a matrix unit."""
        shape = str(setting("TARGET"))
        units = {"mma": MMA_UNITS, "amx": tuple(chain(*AMX_UNITS.values()))}.get(shape, ())
        name = f"python-{shape}" if shape in ("gpu", "mma", "amx") else "python"
        items = 256 if shape in ("gpu", "mma") else 0
        return PythonRenderer(Target(name, ops=PYTHON_OPS, group_items=items, units=units))

    def compile(self, name: str, source: str) -> bytes:
        """The text itself."""
        return source.encode()

    def load(self, name: str, binary: bytes) -> Program:
        """The function that the text defines."""
        scope = dict(_names())
        exec(compile(binary.decode(), f"<kernel {name}>", "exec"), scope)
        return Program(name, scope[name])

    def run(self, calls: Sequence[Call], *, is_timed: bool = False) -> list[int]:
        """Call them one by one."""
        times = []
        for call in calls:
            start = time.perf_counter_ns()
            call.program.handle(*map(_Values, call.buffers), *call.variables, 0, call.threads)
            times.append(time.perf_counter_ns() - start)
        return times if is_timed else []


class _Values:
    """A buffer as Python numbers; an index outside it is an error, also a negative one."""

    __slots__ = ("half", "memory")

    def __init__(self, buffer: Buffer) -> None:
        array = buffer.host_array()
        self.half = buffer.dtype if buffer.dtype in (dtypes.float16, dtypes.bfloat16) else None
        self.memory = (array.view("u2") if self.half else array).data  # a memoryview: quicker, and without halves

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):  # a block for a matrix unit
            return [self[n] for n in range(index.start, index.stop)]
        if index < 0:
            raise IndexError(index)
        value = self.memory[index]
        return from_bits(self.half, value) if self.half else value

    def __setitem__(self, index: int, value: Any) -> None:
        if index < 0:
            raise IndexError(index)
        self.memory[index] = bits_of(self.half, value) if self.half else value


def together(work: Callable[[int, int, dict[int, list[Any]]], Iterator[None]], groups: int, count: int) -> None:
    """Run groups of work-items, those of a group in turn from one barrier to the next, there and back.

    Raises:
        InternalError: some came to the end while others waited at a barrier.
    """
    for group in range(groups):
        shared: dict[int, list[Any]] = {}
        items = [work(group, item, shared) for item in range(count)]
        while items:
            waiting = [item for item in items if next(item, items) is None]
            if waiting and len(waiting) < len(items):
                raise InternalError(
                    f"a barrier of group {group} is reached by {len(waiting)} of {len(items)} work-items"
                )
            items = waiting[::-1]


def _rounder(dtype: DType) -> Callable[[Any], Any]:
    if dtype is dtypes.float32:
        return lambda value: ctypes.c_float(value).value
    if dtype in (dtypes.float64, dtypes.bool):
        return bool if dtype.is_bool else float
    if dtype.is_float:
        return lambda value: to_dtype(dtype, value)
    all_bits, lowest = (1 << dtype.bits) - 1, int(dtype.min)
    return lambda value: (
        (value - lowest & all_bits) + lowest
        if type(value) is int
        else float_to_int(dtype, value)
        if type(value) is float
        else to_dtype(dtype, value)
    )


def _bitcast(a: DType, b: DType) -> Callable[[Any], Any]:
    return lambda value: from_bits(b, bits_of(a, value))


@cache
def _names() -> dict[str, Any]:
    """Return the functions that a rendered kernel may call: rounders, conversions of bits, and the meanings of the
    op table."""
    table: dict[str, Any] = {rounder_name(d): _rounder(d) for d in dtypes.data}
    table["index"] = int
    table["together"] = together
    table.update({f"bitcast_{rounder_name(a)}_{rounder_name(b)}": _bitcast(a, b)
                  for a in dtypes.data for b in dtypes.data if a.bits == b.bits})  # fmt: skip
    table.update({function_name(op): op.py for op in Ops.rows() if op.py is not None})
    return table
