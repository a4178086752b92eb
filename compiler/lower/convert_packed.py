"""Kernel-local buffers that all readers convert to one float type get that type: converted once, when stored.

When: before loops are unrolled. Why there: each panel is still one STORE and one LOAD. Many rows read a packed bfloat16
or float16 operand. Converted while it is packed it costs once, and inner loops just read it. Guarantees: the same
values, since widening is exact. Buffers that readers convert differently are unchanged, and so are operands of dot
products of the target (lower/find_dots.py). Tests: tests/compiler/lower/test_convert_packed.py.
"""

from __future__ import annotations

from kernmill.ir import DType, Ops, Target, UOp, memory_of, rebuilt

from .find_dots import read_by_dots

__all__ = ["convert_packed"]


def convert_packed(ast: UOp, target: Target) -> UOp:
    """The kernel with panels in the type they are used in."""
    wanted = _wanted(ast.toposort(), target)
    if not wanted:
        return ast

    def converted(node: UOp, new: UOp) -> UOp:
        dtype = wanted.get(memory_of(node.src[0] if node.op in (Ops.LOAD, Ops.STORE) else node))
        if node.op is Ops.STORE and dtype is not None:
            return new.replace(src=(new.src[0], new.src[1].cast(dtype)))
        if node.op is Ops.CAST and new.src[0].dtype is node.dtype:
            return new.src[0]
        return new.replace(dtype=dtype)

    return rebuilt(ast, converted)


def _wanted(order: list[UOp], target: Target) -> dict[UOp, DType]:
    """The type that all readers of a LOCAL convert to."""
    found: dict[UOp, set[DType | None]] = {memory: {None} for memory in read_by_dots(order, target)}
    for node in order:
        if node.op is Ops.STORE and node.src[0].dtype.lanes > 1:  # results of a matrix unit are unchanged
            found.setdefault(memory_of(node.src[0]), set()).add(None)
        for s in node.src:
            if s.op is Ops.LOAD and memory_of(s.src[0]).op is Ops.LOCAL:
                is_float = node.op is Ops.CAST and node.dtype.is_float
                found.setdefault(memory_of(s.src[0]), set()).add(node.dtype if is_float else None)
    return {memory: dtype for memory, (dtype, *more) in found.items() if dtype is not None and not more}
