"""Which part of each buffer an iteration of the parallel loop touches: its own part, or any place.

When: the loops are cut. Why: the runtime runs kernels that follow each other part by part (docs/topics/threads.md).
Of T iterations the t-th owns the t-th of T equal parts of a buffer. Only what can be proved is said; gates are ignored.
Tests: tests/compiler/test_locality.py.
"""

from __future__ import annotations

from kernmill.ir import AxisKind, Ops, UOp, linear, memory_of, span

__all__ = ["locality"]


def locality(ast: UOp) -> str:
    """A letter for each buffer, by slot: `w` written and `r` only read in the part that an iteration owns, `s` read
    anywhere. Nothing where threads share no loop, compute something outside of it, write to parts of others, or write
    around the caches, where nobody would find it."""
    order = ast.toposort()
    loop = next((node for node in order if node.op is Ops.RANGE and node.arg[1] == AxisKind.THREAD), None)
    work = [node for node in order if node.op in (Ops.STORE, Ops.REDUCE)]
    if loop is None or any(loop not in node.ranges or node.arg == "nt" for node in work):
        return ""
    places = [node for node in order if node.op is Ops.INDEX and memory_of(node).op is Ops.PARAM]
    elsewhere = {memory_of(place) for place in places if not _is_own(place, loop)}
    written = {memory_of(node.src[0]) for node in order if node.op is Ops.STORE}
    if written & elsewhere:
        return ""
    params = sorted((node for node in order if node.op is Ops.PARAM), key=lambda param: int(param.arg[0]))
    return "".join("w" if p in written else "s" if p in elsewhere else "r" for p in params)


def _is_own(place: UOp, loop: UOp) -> bool:
    """Whether the place lies in the part of its buffer that the iteration owns."""
    terms, offset = _terms(place.src[1])
    part = terms.pop(loop, 0)
    if not loop.src[0].is_const or part * loop.src[0].arg != memory_of(place).arg[1]:
        return False
    low, high = span(terms, offset)
    return low >= 0 and high < part


def _terms(place: UOp) -> tuple[dict[UOp, int], int]:
    """As `linear`, through casts of whole numbers that cannot have been too large for their type."""
    terms, offset, stack = dict[UOp, int](), 0, [(place, 1)]
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
