"""Programs of routines, verified, for targets that differ: scalars, vectors with threads, work-items."""

from __future__ import annotations

from dataclasses import replace

from kernmill.compiler import expand_routine
from kernmill.ir import Ops, Stage, UOp, const, dtypes, verify
from tests.compiler.kernels import SCALARS, VECTORS

TARGETS = {
    "scalars": SCALARS,
    "vectors": replace(VECTORS, has_threads=True),
    "wide": replace(VECTORS, vector_bytes=64, vector_registers=32),
    "items": replace(SCALARS, group_items=64),
}


def program(target: str, name: str, counts: tuple[int, ...], batch: int, interleaved: bool, *sizes: int) -> list[UOp]:
    """The linear list of a routine: `counts` are the values of its buffers for one matrix, the result first."""
    params = [UOp(Ops.PARAM, dtypes.float64, (), (slot, count * batch)) for slot, count in enumerate(counts)]
    places = [UOp(Ops.INDEX, p.dtype, (p, const(dtypes.index, 0))) for p in params]
    read = tuple(UOp(Ops.LOAD, dtypes.float64, (place,)) for place in places[1:])
    node = UOp(Ops.ROUTINE, dtypes.float64, read, (name, counts[0] * batch, batch, interleaved, *sizes))
    ast = UOp(Ops.SINK, dtypes.void, (UOp(Ops.STORE, dtypes.void, (places[0], node)),))
    uops = expand_routine(ast, node, TARGETS[target])
    verify(uops, Stage.LINEAR, name, TARGETS[target].most_lanes)
    return uops


def lanes(uops: list[UOp]) -> int:
    """The lanes of the widest store."""
    return max(u.src[1].dtype.lanes for u in uops if u.op is Ops.STORE)


def kinds(uops: list[UOp]) -> set[str]:
    """The kinds of loops."""
    return {str(u.arg[1]) for u in uops if u.op is Ops.RANGE}
