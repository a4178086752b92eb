"""Random inputs of a kernel, to run it by itself: numbers, bits, and indices that are in range."""

from __future__ import annotations

from typing import Any

from kernmill.ir import DType, Kernel, Ops, UOp, dtypes, linear, np

__all__ = ["params_of", "random_inputs"]

_SMALL = 100  # integers that are not indices
_DISTINCT = (1 << 20) - 3  # values, which a large buffer repeats: to draw them takes longer than to compute with them


def params_of(kernel: Kernel) -> list[UOp]:
    """Return the PARAM nodes by slot."""
    return sorted((n for n in kernel.ast.toposort() if n.op is Ops.PARAM), key=lambda p: int(p.arg[0]))


def random_inputs(kernel: Kernel) -> dict[int, Any]:
    """Return values for each slot that the kernel reads; 1-D arrays, bfloat16 as uint16."""
    nodes = kernel.ast.toposort()
    read = {n.src[0].src[0] for n in nodes if n.op is Ops.LOAD}
    rng = np.random.default_rng(1)
    return {p.arg[0]: _values(p, _index_bound(p, nodes), rng) for p in params_of(kernel) if p in read}


def _values(param: UOp, most: int, rng: Any) -> Any:
    """Make values for an input buffer: normal numbers, bits, and integers below `most`."""
    return np.resize(_drawn(min(int(param.arg[1]), _DISTINCT), param.dtype, most, rng), int(param.arg[1]))


def _drawn(count: int, dtype: DType, most: int, rng: Any) -> Any:
    if dtype is dtypes.bool:
        return rng.integers(0, 2, count).astype(bool)
    if not dtype.is_float:
        return rng.integers(0, min(most, int(dtype.max) + 1), count).astype(dtype.name)
    values = rng.standard_normal(count, np.float32)
    if dtype is dtypes.bfloat16:
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype.name)


def _index_bound(param: UOp, nodes: list[UOp]) -> int:
    """Return a bound that a buffer's integers are below: its values may be indices of an axis; others are small."""
    most = _SMALL
    is_position = False
    for node in nodes:
        if node.op is not Ops.INDEX or node.src[0].op is not Ops.PARAM:
            continue
        terms, offset = linear(node.src[1])
        loaded = [atom for atom in terms if any(n.op is Ops.LOAD for n in atom.toposort())]
        rest = offset + sum(max(0, k * atom.bounds[1]) for atom, k in terms.items() if atom not in loaded)
        for atom in loaded:
            if any(n.op is Ops.LOAD and n.src[0].src[0] is param for n in atom.toposort()):
                room = node.src[0].arg[1] - rest if terms[atom] > 0 else offset
                limit = max(1, int(room) // (abs(terms[atom]) * len(loaded)))
                most, is_position = min(most, limit) if is_position else limit, True
    return most
