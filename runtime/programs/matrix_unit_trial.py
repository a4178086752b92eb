"""A small product by which any matrix unit is tried before kernels rely on it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import Final

from kernmill.ir import AxisKind, DType, Ops, Unit, UOp, bits_of, const, dtypes, make_range

__all__ = ["matrix_unit_trial"]

_STEPS: Final = 2  # blocks of terms that are added up


def matrix_unit_trial(unit: Unit) -> tuple[list[UOp], list[ctypes.Array[ctypes.c_char]], bytes]:
    """Return a small kernel with full-range operands, the memory of its three buffers, and the expected contents of
    the last one."""
    sizes = (unit.a, unit.m * unit.k), (unit.b, unit.k * unit.n)
    blocks = [
        [[_operand_value(n + step, dtype) for n in range(size)] for step in range(_STEPS)] for dtype, size in sizes
    ]
    wanted: list[float] = [0] * (unit.m * unit.n)
    for a, b in zip(*blocks, strict=True):
        assert Ops.MMA.py is not None
        wanted = Ops.MMA.py(a, b, wanted, unit.m, unit.n, unit.k, unit.group)
    memory = [_memory([*chain(*block)], dtype) for block, (dtype, _) in zip(blocks, sizes, strict=True)]
    right, result = (_memory(values, unit.c) for values in (wanted, [0] * len(wanted)))
    return _kernel(unit), [*memory, result], right.raw


def _kernel(unit: Unit) -> list[UOp]:
    """Build the kernel: multiply blocks of a and b one after another, and store the sums."""
    step = make_range("k", const(dtypes.int64, _STEPS), AxisKind.REDUCE)
    loads: list[UOp] = []
    for slot, dtype, size in ((0, unit.a, unit.m * unit.k), (1, unit.b, unit.k * unit.n)):
        memory = UOp(Ops.PARAM, dtype, (), (slot, _STEPS * size))
        address = UOp(Ops.INDEX, dtype.vec(size), (memory, step * size))
        loads.append(UOp(Ops.LOAD, address.dtype, (address,)))
    kind = unit.c.vec(unit.m * unit.n)
    register = UOp(Ops.REG, kind, (const(kind, 0),), "sum")
    so_far = UOp(Ops.CARRY, kind, (register, step))
    total = UOp(Ops.MMA, kind, (*loads, so_far), (unit.m, unit.n, unit.k, unit.group))
    done = UOp(Ops.AFTER, kind, (register, UOp(Ops.SET, dtypes.void, (register, total)), step), 1)
    memory = UOp(Ops.PARAM, unit.c, (), (2, kind.lanes))
    address = UOp(Ops.INDEX, kind, (memory, const(dtypes.int64, 0)))
    uops = UOp(Ops.STORE, dtypes.void, (address, done)).toposort()
    uops.insert(uops.index(done), UOp(Ops.END, dtypes.void, (step,)))
    if not unit.items:
        return uops
    count = const(dtypes.int64, prod(count for count, _ in unit.items))
    item = make_range("item", count, AxisKind.LOCAL)
    return [count, item, *(u for u in uops if u is not count), UOp(Ops.END, dtypes.void, (item,))]


def _operand_value(number: int, dtype: DType) -> float:
    """Return one of all values of 8 bits, which each of the types represents exactly, as well as their sums."""
    value = number * 37 % 256
    value = value if dtype is dtypes.uint8 else value - 128
    return float(value) if dtype.is_float else value


def _memory(values: Sequence[float], dtype: DType) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(b"".join(bits_of(dtype, v).to_bytes(dtype.size_bytes, "little") for v in values))
