"""Readable Python: the reference. Each operation is one line, rounded to its dtype by a function such as f32.

The kernel is `def name(buffers.., begin, end)`; `ops_python.py` provides the functions that it calls (f32, exp, ...).
With work-groups, each work-item is a generator that yields at every barrier, and `together` steps the work-items of a
group from barrier to barrier.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernmill.ir import AxisKind, DType, InternalError, Op, OpGroup, Ops, UOp, dtypes

from .base import Renderer, grid_digits, identifier, signature

__all__ = ["PYTHON_OPS", "PythonRenderer", "function_name", "rounder_name"]

PYTHON_OPS = frozenset(op for op in Ops.rows() if op.is_elementwise)
_INFIX = {Ops.ADD: "+", Ops.SUB: "-", Ops.MUL: "*", Ops.AND: "&", Ops.OR: "|", Ops.XOR: "^", Ops.LT: "<", Ops.LE: "<=",
          Ops.EQ: "==", Ops.NE: "!="}  # fmt: skip
_EXACT = frozenset({Ops.AND, Ops.OR, Ops.XOR, Ops.WHERE, Ops.MAX, Ops.MIN, Ops.CMOD})  # exact: no rounding


def rounder_name(dtype: DType) -> str:
    """Return the name of the function that rounds or wraps a number to the dtype: f32, i8, u64, boolean."""
    scalar = dtype.scalar
    if scalar.is_bool:
        return "boolean"
    return scalar.name.replace("float", "f").replace("uint", "u").replace("int", "i")


class PythonRenderer(Renderer):
    """Text for CPython."""

    def render(self, name: str, uops: Sequence[UOp]) -> str:
        """Return the source text of the kernel `name`."""
        sig = signature(uops)
        names = {**{u: f"b{u.arg[0]}" for u in sig.params}, **{u: f"n_{u.arg[0]}" for u in sig.variables}}
        arguments = [*(names[u] for u in sig.params), *(names[u] for u in sig.variables), "begin", "end"]
        lines = [f"def {name}({', '.join(arguments)}):"]
        depth = 1
        digits = grid_digits(uops) if sig.group else {}
        if sig.group:
            lines.append("    def work(group, me, shared):")
            depth = 2
        for u in uops:
            if u.op is Ops.END:
                depth -= u.src[0] not in digits
                continue
            if u in digits:
                names[u] = identifier(str(u.arg[0]))
                text = f"{names[u]} = group // {digits[u][0]} % {digits[u][1]}"
            else:
                text = _line(u, names)
            if text:
                lines.append("    " * depth + text)
            if u.op is Ops.RANGE and u not in digits:
                depth += 1
        if sig.group:
            lines += ["        yield", f"    together(work, (end - begin) // {sig.group}, {sig.group})"]
        return "\n".join(lines) + "\n"


def _line(u: UOp, names: dict[UOp, str]) -> str:
    """Return the line of a node; empty if it only adds to `names` an expression for other lines."""
    match u.op:
        case Ops.PARAM | Ops.VARIABLE | Ops.PREFETCH:
            return ""
        case Ops.CONST:
            text = repr(u.arg) if abs(u.arg) != float("inf") and u.arg == u.arg else f'float("{u.arg}")'
            names[u] = text if u.dtype.lanes == 1 else f"[{text}] * {u.dtype.lanes}"
            return ""
        case Ops.BARRIER:
            return "yield"
        case Ops.RANGE:
            if u.arg[1] == AxisKind.LOCAL:
                names[u] = "me"
                return f"if me < {u.src[0].arg}:"
            names[u] = identifier(str(u.arg[0]))
            bounds = names[u.src[0]]
            if u.arg[1] == AxisKind.THREAD:
                first = u.first_iteration or 0
                bounds = f"max(0, begin - {first}), min(end - {first}, {bounds})"
            return f"for {names[u]} in range({bounds}):"
        case Ops.INDEX:
            index = names[u.src[1]]
            index = index if u.dtype.lanes == 1 else f"{index}:{index} + {u.dtype.lanes}"
            names[u] = f"{names[u.src[0]]}[{index}]"
            return ""
        case Ops.AFTER | Ops.CARRY:
            names[u] = names[u.src[0]]
            return ""
        case Ops.SET:
            return f"{names[u.src[0]]} = {names[u.src[1]]}"
        case Ops.STORE:
            gate = u.src[0].src[2:]
            line = f"{names[u.src[0]]} = {names[u.src[1]]}"
            return f"if {names[gate[0]]}: {line}" if gate else line
    if u.dtype in (dtypes.int64, dtypes.index) and u.op in (Ops.ADD, Ops.MUL) and _is_index(u):
        names[u] = f"({names[u.src[0]]} {_INFIX[u.op]} {names[u.src[1]]})"
        return ""
    names[u] = identifier(str(u.arg)) if u.op is Ops.REG else f"v{len(names)}"
    return f"{names[u]} = {_expression(u, names)}"


def _is_index(u: UOp) -> bool:
    return all(
        s.op in (Ops.RANGE, Ops.CONST, Ops.VARIABLE) or (s.op in (Ops.ADD, Ops.MUL) and _is_index(s)) for s in u.src
    )


def _expression(u: UOp, names: dict[UOp, str]) -> str:
    src = [names[s] for s in u.src]
    match u.op:
        case Ops.REG:
            return src[0]
        case Ops.LOCAL:
            if "shared" in u.arg:
                return f"shared.setdefault({len(names)}, [None] * {u.arg[1]})"
            return f"[{'0.0' if u.dtype.is_float else '0'}] * {u.arg[1]}"
        case Ops.LOAD:
            gate = u.src[0].src[2:]
            return f"{src[0]} if {names[gate[0]]} else {'0.0' if u.dtype.is_float else '0'}" if gate else src[0]
        case Ops.WHERE:
            return f"{src[1]} if {src[0]} else {src[2]}"
        case Ops.BITCAST:
            return f"bitcast_{rounder_name(u.src[0].dtype)}_{rounder_name(u.dtype)}({src[0]})"
        case Ops.CAST:
            return f"{rounder_name(u.dtype)}({src[0]})"
        case Ops.MMA:
            return f"[{rounder_name(u.dtype)}(x) for x in mma({', '.join([*src, *map(str, u.arg)])})]"
    if u.op.group not in (OpGroup.UNARY, OpGroup.BINARY, OpGroup.COMPARE, OpGroup.TERNARY):
        raise InternalError(f"python: {u!r} has no text")
    text = f"{src[0]} {_INFIX[u.op]} {src[1]}" if u.op in _INFIX else f"{function_name(u.op)}({', '.join(src)})"
    return text if u.op in _EXACT or u.op.group is OpGroup.COMPARE else f"{rounder_name(u.dtype)}({text})"


def function_name(op: Op) -> str:
    """Return the name of the Python function of an op (its `py` in the op table)."""
    return f"{op.name.lower()}_" if op.name.lower() in ("abs", "max", "min", "pow", "round") else op.name.lower()
