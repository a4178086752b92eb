"""The slice of each buffer that an iteration of the parallel loop accesses: its own slice, or any element.

When: after loops are split. Why: the runtime runs consecutive kernels tile by tile (docs/topics/threads.md).
Of T iterations the t-th owns the t-th of T equal slices of a buffer. Only proved facts are returned; gates are ignored.
Tests: tests/compiler/kernel/test_locality.py.
"""

from __future__ import annotations

from kernmill.ir import AxisKind, Ops, UOp, linear, memory_of, span

__all__ = ["locality"]


def locality(ast: UOp) -> str:
    """Return a letter for each buffer, by slot: `w` written and `r` only read in the slice that an iteration owns,
    `s` read anywhere. Empty if there is no THREAD loop, work outside of it, writes to other slices, or
    non-temporal stores."""
    order = ast.toposort()
    loop = next((node for node in order if node.op is Ops.RANGE and node.arg[1] == AxisKind.THREAD), None)
    work = [node for node in order if node.op in (Ops.STORE, Ops.REDUCE)]
    if loop is None or any(loop not in node.ranges or node.arg == "nt" for node in work):
        return ""
    indices = [node for node in order if node.op is Ops.INDEX and memory_of(node).op is Ops.PARAM]
    elsewhere = {memory_of(index) for index in indices if not _is_own(index, loop)}
    written = {memory_of(node.src[0]) for node in order if node.op is Ops.STORE}
    if written & elsewhere:
        return ""
    params = sorted((node for node in order if node.op is Ops.PARAM), key=lambda param: int(param.arg[0]))
    return "".join("w" if p in written else "s" if p in elsewhere else "r" for p in params)


def _is_own(index: UOp, loop: UOp) -> bool:
    """True if the index is in the slice of its buffer that the iteration owns."""
    terms, offset = _terms(index.src[1])
    part = terms.pop(loop, 0)
    if not loop.src[0].is_const or part * loop.src[0].arg != memory_of(index).arg[1]:
        return False
    low, high = span(terms, offset)
    return low >= 0 and high < part


def _terms(index: UOp) -> tuple[dict[UOp, int], int]:
    """Like `linear`, but through casts of ints that cannot have overflowed."""
    terms, offset, stack = dict[UOp, int](), 0, [(index, 1)]
    while stack:
        node, factor = stack.pop()
        shared, more = linear(node)
        offset += factor * more
        for atom, k in shared.items():
            of = atom.src[0] if atom.op is Ops.CAST else atom
            if of is not atom and of.dtype.is_int and of.bounds == atom.bounds != (of.dtype.min, of.dtype.max):
                stack.append((of, factor * k))
            else:
                terms[atom] = terms.get(atom, 0) + factor * k
    return terms, offset
